"""Read a photo or a text from what a row of a table holds, or from a file's path or address."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from whence.distributed.addresses import Location, is_address
from whence.errors import WhenceError
from whence.inputs.images import decode_image, image_from_array, to_rgb
from whence.inputs.sources import Kind
from whence.inputs.texts import MAX_BYTES, decode_text, validate_text

_NOUNS = {"image": "The photo", "text": "The text"}


@dataclass(frozen=True)
class Item:
    """One input of a run that is not read yet.

    Attributes:
        id: Its name in the results.
        read: Reads the photo or the text; a `WhenceError` says why it cannot.
    """

    id: str
    read: Callable[[], Image.Image | str]


def make_items(
    table: Any, id_column: str, columns: Sequence[str], kind: Kind, folder: str = ""
) -> list[Item]:
    """Make the inputs of a `pyarrow.Table`, one for each row.

    Args:
        table: The table.
        id_column: Its column of ids.
        columns: Those that may hold the photo or text; of each row, the first that holds anything.
        kind: Whether they are photos or texts.
        folder: Where paths begin that are not absolute.

    Raises:
        WhenceError: A row has no id.
    """
    held = [table.column(name) for name in columns if name in table.column_names]
    ids = to_ids(table.column(id_column), id_column)
    return [
        Item(name, partial(_read_first, [column[row] for column in held], kind, folder))
        for row, name in enumerate(ids)
    ]


def _read_first(values: Sequence[Any], kind: Kind, folder: str) -> Image.Image | str:
    found = (value.as_py() for value in values)
    return read_content(next((one for one in found if one is not None), None), kind, folder)


def to_ids(column: Any, name: str = "id") -> list[str]:
    """Turn a column of ids, of Arrow, into texts.

    Raises:
        WhenceError: One is missing, or neither a text nor a whole number.
    """
    return [to_id(value, name) for value in column.to_pylist()]


def to_id(value: object, column: str = "id") -> str:
    """Turn a value of the column of ids into an id.

    Raises:
        WhenceError: It is missing, or neither a text nor a whole number.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    held = "nothing" if value is None or value == "" else type(value).__name__
    raise WhenceError(
        f"The column '{column}' does not tell rows apart: one holds {held}. Ids are texts or whole "
        f"numbers; choose a column of them with --id."
    )


def read_file(address: str, kind: Kind) -> Image.Image | str:
    """Read the photo or the text in a file; errors name no path, since the row's id does.

    Args:
        address: Its path, or an address such as ``s3://bucket/photos/cat.jpg``.
        kind: Whether it is a photo or a text.

    Raises:
        WhenceError: It cannot be read, or is damaged.
    """
    try:
        if is_address(address):
            content = Location(address).read()
        else:
            with Path(address).open("rb") as file:
                content = file.read(MAX_BYTES if kind == "text" else -1)
    except (OSError, ValueError):
        raise WhenceError("The file is not there, or may not be read.") from None
    return decode_content(content, kind)


def decode_content(content: bytes, kind: Kind) -> Image.Image | str:
    """Decode the bytes of a photo's file, or of a text."""
    if kind == "text":
        return decode_text(content, _NOUNS[kind])
    return decode_image(io.BytesIO(content), _NOUNS[kind])


def read_content(value: object, kind: Kind, folder: str = "") -> Image.Image | str:
    """Read a photo or a text from a value of a table.

    Args:
        value: The bytes of a file; a mapping with "bytes" or "path", as Hugging Face's datasets
            write photos; the path or address of a photo; a text; an array of pixels; or an image.
        kind: Whether it is a photo or a text.
        folder: Where paths begin that are not absolute.

    Raises:
        WhenceError: It is nothing of that kind, or damaged.
    """
    if isinstance(value, Mapping):
        content = value.get("bytes")
        value = value.get("path") if content is None else content
    if value is None:
        raise WhenceError(f"{_NOUNS[kind]} is missing.")
    if isinstance(value, bytes | bytearray | memoryview):
        return decode_content(bytes(value), kind)
    if isinstance(value, str):
        if kind == "text":
            return validate_text(value)
        return read_file(value if is_address(value) else join_path(folder, value), kind)
    if kind == "image" and isinstance(value, Image.Image):
        return to_rgb(value)
    if kind == "image" and isinstance(value, np.ndarray | list):
        try:
            pixels = np.ascontiguousarray(value)
        except ValueError:
            raise WhenceError("The photo's rows of pixels have different lengths.") from None
        return image_from_array(pixels)
    raise WhenceError(f"{_NOUNS[kind]} cannot be read from {type(value).__name__}.")


def join_path(folder: str, name: str) -> str:
    """Join a folder's path or address, and a path that may be absolute."""
    if os.path.isabs(name) or not folder:
        return name
    return f"{folder.rstrip('/')}/{name}"
