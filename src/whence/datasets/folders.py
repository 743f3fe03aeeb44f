"""Find photos and other files in the folders of a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from whence._util.files import is_file, is_folder
from whence.errors import WhenceError
from whence.inputs.images import IMAGES


def list_photos(folder: Path, deep: bool = False) -> list[Path]:
    """List the photos in a folder, and if `deep` in those below it, sorted by path."""
    return sorted((Path(file) for file in _walk(folder, deep) if _is_photo(file)), key=str)


def find_files(folder: Path, suffix: str) -> Iterator[Path]:
    """Yield all files with a suffix in a folder and below it, in no order."""
    return (Path(file) for file in _walk(folder, True) if file.lower().endswith(suffix))


def list_entries(folder: Path) -> list[os.DirEntry[str]]:
    """List the files and folders in a folder that are not hidden."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise WhenceError(f"The folder '{folder}' cannot be read: {error.strerror}.") from error


def list_subfolders(folder: Path) -> list[Path]:
    """List the folders in a folder that are not hidden, sorted by path."""
    return sorted((Path(e.path) for e in list_entries(folder) if e.is_dir()), key=str)


def has_photo(folder: Path) -> bool:
    """Whether a folder itself holds a photo."""
    return is_folder(folder) and any(map(_is_photo, _walk(folder, False)))


def name_relative(file: Path, folder: Path) -> str:
    """Return the path of a file from a folder, the same on every system, as valid UTF-8."""
    # A name need not be UTF-8, but a sample's name gets printed and saved.
    return os.fsencode(file.relative_to(folder).as_posix()).decode("utf-8", "backslashreplace")


def get_size(file: Path | None) -> int | None:
    """Return the size of a file in bytes; None if there is no file."""
    try:
        return None if file is None else file.stat().st_size
    except OSError:
        return None


def find_first_folder(candidates: Iterable[Path]) -> Path | None:
    """Return the first of these folders that exists."""
    return next(filter(is_folder, candidates), None)


def find_first_file(candidates: Iterable[Path]) -> Path | None:
    """Return the first of these files that exists."""
    return next(filter(is_file, candidates), None)


def _is_photo(file: str) -> bool:
    return os.path.splitext(file)[1].lower() in IMAGES


def _walk(folder: Path, deep: bool) -> Iterator[str]:
    for entry in list_entries(folder):
        if entry.is_file():
            yield entry.path
        elif deep and entry.is_dir(follow_symlinks=False):  # a link may lead in circles
            yield from _walk(Path(entry.path), deep)
