"""File system helpers: questions that never raise, and writing of whole files only."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from whence._util.near_names import suggest_paths
from whence.errors import WhenceError

# Endings of files that a figure is written to.
FIGURES = (".png", ".jpg", ".jpeg", ".svg")


def is_file(path: Path) -> bool:
    """Whether there is such a file; False where permissions hide it."""
    return _ask(path, Path.is_file)


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; False where permissions hide it."""
    return _ask(path, Path.is_dir)


def exists(path: Path) -> bool:
    """Whether there is a file or folder of that name; False where permissions hide it."""
    return _ask(path, Path.exists)


def check_is_file(path: Path, expected: str) -> None:
    """Refuse a path at which there is no file, and say what was expected there."""
    if not is_file(path):
        if is_folder(path):
            raise WhenceError(f"'{path}' is a folder, not {expected}.")
        raise WhenceError(f"'{path}' is not there, or may not be read.{suggest_paths(path)}")


def check_ending(path: str | Path, endings: Sequence[str]) -> str:
    """The ending of a file's name in lower case, if it is one of these.

    Raises:
        WhenceError: It is another.
    """
    ending = Path(path).suffix.lower()
    if ending not in endings:
        *first, last = endings
        listed = f"{', '.join(first)} or {last}" if first else last
        raise WhenceError(f"'{path}' must end in {listed}, which says what to write.")
    return ending


def _ask(path: Path, question: Callable[[Path], bool]) -> bool:
    try:
        return question(path)
    except (OSError, ValueError):  # no permission, or a name that no file can have
        return False


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it, so that a half-written one is never seen.

    Raises:
        WhenceError: The file cannot be written.
    """
    beside = path.with_name(f".{path.name[:80]}.{uuid.uuid4().hex}")
    try:
        try:
            beside.write_bytes(content)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if not is_folder(path.parent):
            reason = f"there is no folder '{path.parent}'"
        raise WhenceError(f"'{path}' cannot be written: {reason}.") from error


@contextlib.contextmanager
def stage_files(folder: Path) -> Iterator[Path]:
    """Yield an empty folder, whose files move to `folder` when the block ends without an error.

    Raises:
        WhenceError: The folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".whence-", dir=folder))
        try:
            yield stage
            for file in sorted(stage.iterdir()):
                file.replace(folder / file.name)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise WhenceError(f"The folder '{folder}' cannot be written to: {reason}.") from error


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to; it is created if it is not there.

    Raises:
        WhenceError: It cannot be written to.
    """
    with stage_files(folder):
        pass
