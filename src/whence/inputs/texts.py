"""Read and validate texts from files or bytes."""

from __future__ import annotations

from pathlib import Path

from whence._util.files import is_file, is_folder
from whence.errors import WhenceError

# No classifier reads more than a few thousand words; a file may hold gigabytes.
MAX_BYTES = 1_000_000


def read_text(path: str | Path) -> str:
    """Read the text of a file, but no more of it than a model could use.

    Raises:
        WhenceError: There is no such file, or it is empty or not UTF-8.
    """
    path = Path(path)
    if not is_file(path):
        what = "a folder, not a text" if is_folder(path) else "not there, or may not be read"
        raise WhenceError(f"'{path}' is {what}.")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
    except OSError as error:
        raise WhenceError(f"'{path}' cannot be read: {error.strerror}.") from error
    return decode_text(content, f"'{path}'")


def decode_text(content: bytes, name: str) -> str:
    """Decode UTF-8 bytes to text.

    Raises:
        WhenceError: The bytes are not UTF-8, or hold no text.
    """
    try:
        return validate_text(content[:MAX_BYTES].decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        if len(content) >= MAX_BYTES and error.start >= MAX_BYTES - 4:  # cut within a character
            return validate_text(content[: error.start].decode("utf-8-sig"), name)
        raise WhenceError(f"{name} is not text in UTF-8.") from None


def validate_text(text: str, name: str = "The text") -> str:
    """Return a text without lone surrogates.

    Raises:
        WhenceError: It is empty.
    """
    if not text.strip():
        raise WhenceError(f"{name} is empty.")
    # Lone surrogates come from undecodable arguments, and no tokenizer takes them.
    return text.encode("utf-8", "replace").decode()
