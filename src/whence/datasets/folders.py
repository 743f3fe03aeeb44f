"""Looking for photos in folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from whence._util.files import is_file, is_folder
from whence.errors import WhenceError
from whence.inputs.sources import IMAGES


def photos_in(folder: Path, deep: bool = False) -> list[Path]:
    """The photos in a folder, and if `deep` in those below it, in the order of their names."""
    return sorted((Path(found) for found in _files(folder, deep) if is_photo(found)), key=str)


def files_below(folder: Path, suffix: str) -> Iterator[Path]:
    """All files with a suffix in a folder and below it, in no order."""
    return (Path(found) for found in _files(folder, True) if found.lower().endswith(suffix))


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder that are not hidden, in the order of their names."""
    return sorted((Path(e.path) for e in _entries(folder) if e.is_dir()), key=str)


def is_photo(file: str) -> bool:
    """Whether a file is a photo, as its suffix tells."""
    return os.path.splitext(file)[1].lower() in IMAGES


def has_photo(folder: Path) -> bool:
    """Whether a folder itself holds a photo."""
    return is_folder(folder) and any(is_photo(found) for found in _files(folder, False))


def relative(file: Path, folder: Path) -> str:
    """The path of a file from a folder, the same on every system, as text that can be written."""
    # A name need not be UTF-8, but a sample's name gets printed and saved.
    return os.fsencode(file.relative_to(folder).as_posix()).decode("utf-8", "backslashreplace")


def size_of(file: Path | None) -> int | None:
    """The size of a file in bytes; None if there is none."""
    try:
        return None if file is None else file.stat().st_size
    except OSError:
        return None


def first_folder(candidates: Iterable[Path]) -> Path | None:
    """The first of these folders that is there."""
    return next((folder for folder in candidates if is_folder(folder)), None)


def first_file(candidates: Iterable[Path]) -> Path | None:
    """The first of these files that is there."""
    return next((file for file in candidates if is_file(file)), None)


def _files(folder: Path, deep: bool) -> Iterator[str]:
    for entry in _entries(folder):
        if entry.is_file():
            yield entry.path
        elif deep and entry.is_dir(follow_symlinks=False):  # a link may lead in circles
            yield from _files(Path(entry.path), deep)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise WhenceError(f"The folder '{folder}' cannot be read: {error.strerror}.") from error
