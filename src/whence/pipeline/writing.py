"""Writing results so that no half of one is ever seen."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from whence.errors import WhenceError


@contextlib.contextmanager
def moved_when_whole(folder: Path) -> Iterator[Path]:
    """A place to write files, which move to the folder once all of them are written.

    Raises:
        WhenceError: The folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".whence-", dir=folder))
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        yield beside
        for file in sorted(beside.iterdir()):
            file.replace(folder / file.name)
    except OSError as error:
        raise unwritable(folder, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def unwritable(folder: Path, error: OSError) -> WhenceError:
    """The sentence for a folder that cannot be written to."""
    reason = error.strerror or str(error)
    return WhenceError(f"The folder '{folder}' cannot be written to: {reason}.")
