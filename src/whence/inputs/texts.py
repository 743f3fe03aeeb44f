"""Read and validate texts from files or bytes."""

from __future__ import annotations

from pathlib import Path

from whence._util.files import check_is_file
from whence.errors import WhenceError

# No classifier reads more than a few thousand words; a file may hold gigabytes.
MAX_BYTES = 1_000_000


def read_text(path: str | Path) -> str:
    """Read the text of a file, but no more of it than a model could use."""
    path = Path(path)
    check_is_file(path, "a text")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
    except OSError as error:
        raise WhenceError(f"'{path}' cannot be read: {error.strerror}.") from error
    return decode_text(content, f"'{path}'")


def decode_text(content: bytes, name: str) -> str:
    """Decode UTF-8 bytes to text; an error names it so."""
    try:
        return validate_text(content[:MAX_BYTES].decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        if len(content) >= MAX_BYTES and error.start >= MAX_BYTES - 4:  # cut within a character
            return validate_text(content[: error.start].decode("utf-8-sig"), name)
        raise WhenceError(f"{name} is not text in UTF-8.") from None


def validate_text(text: str, name: str = "The text") -> str:
    """Return a text without lone surrogates; an empty one is an error."""
    if not text.strip():
        raise WhenceError(f"{name} is empty.")
    # Lone surrogates come from undecodable arguments, and no tokenizer takes them.
    return text.encode("utf-8", "replace").decode()
