"""Writing files whole or not at all."""

from __future__ import annotations

import uuid
from pathlib import Path

from whence.errors import WhenceError


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
