"""Asking for files without being thrown out, and writing them whole or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from whence.errors import WhenceError


def is_file(path: Path) -> bool:
    """Whether there is such a file that can be seen; a place that may not be looked at has none."""
    return _asked(path, Path.is_file)


def is_folder(path: Path) -> bool:
    """Whether there is such a folder that can be seen."""
    return _asked(path, Path.is_dir)


def exists(path: Path) -> bool:
    """Whether there is anything of that name that can be seen."""
    return _asked(path, Path.exists)


def _asked(path: Path, question: Callable[[Path], bool]) -> bool:
    try:
        return question(path)
    except (OSError, ValueError):  # no permission, or a name that no file can have
        return False


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the place and move there, so that no half-written file is ever seen.

    Raises:
        WhenceError: The place cannot be written.
    """
    beside = path.with_name(f".{path.name[:80]}.{uuid.uuid4().hex}")
    try:
        try:
            beside.write_bytes(content)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise WhenceError(f"'{path}' cannot be written: {error}.") from error
