"""Find photos and other files in folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from whence._util.files import is_file, is_folder
from whence.errors import WhenceError
from whence.inputs.sources import IMAGES


def list_photos(folder: Path, deep: bool = False) -> list[Path]:
    """List the photos in a folder, and if `deep` in those below it, sorted by name."""
    return sorted((Path(found) for found in _scan_files(folder, deep) if is_photo(found)), key=str)


def find_files(folder: Path, suffix: str) -> Iterator[Path]:
    """Find all files with a suffix in a folder and below it, in no order."""
    return (Path(found) for found in _scan_files(folder, True) if found.lower().endswith(suffix))


def list_subfolders(folder: Path) -> list[Path]:
    """List the folders in a folder that are not hidden, sorted by name."""
    return sorted((Path(e.path) for e in _scan_folder(folder) if e.is_dir()), key=str)


def is_photo(file: str) -> bool:
    """Whether a file has the suffix of a photo."""
    return os.path.splitext(file)[1].lower() in IMAGES


def has_photo(folder: Path) -> bool:
    """Whether a folder itself holds a photo."""
    return is_folder(folder) and any(is_photo(found) for found in _scan_files(folder, False))


def name_relative(file: Path, folder: Path) -> str:
    """Name a file by its path from a folder, the same on every system, as valid text."""
    # A name need not be UTF-8, but a sample's name gets printed and saved.
    return os.fsencode(file.relative_to(folder).as_posix()).decode("utf-8", "backslashreplace")


def get_size(file: Path | None) -> int | None:
    """Return the size of a file in bytes; None if there is no file."""
    try:
        return None if file is None else file.stat().st_size
    except OSError:
        return None


def find_first_folder(candidates: Iterable[Path]) -> Path | None:
    """Find the first of these folders that exists."""
    return next((folder for folder in candidates if is_folder(folder)), None)


def find_first_file(candidates: Iterable[Path]) -> Path | None:
    """Find the first of these files that exists."""
    return next((file for file in candidates if is_file(file)), None)


def _scan_files(folder: Path, deep: bool) -> Iterator[str]:
    for entry in _scan_folder(folder):
        if entry.is_file():
            yield entry.path
        elif deep and entry.is_dir(follow_symlinks=False):  # a link may lead in circles
            yield from _scan_files(Path(entry.path), deep)


def _scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise WhenceError(f"The folder '{folder}' cannot be read: {error.strerror}.") from error
