"""Find the columns of a table that hold the photos or texts, and the ids."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from whence._util.near_names import suggest_names
from whence.errors import WhenceError
from whence.inputs.images import IMAGES
from whence.inputs.sources import Kind
from whence.inputs.tables import TEXT_COLUMNS

ID_COLUMNS = ("id", "__key__")
_PHOTO_COLUMNS = ("image", "photo", "img", "picture", "pixels", "bytes", "content")
_PATH_COLUMNS = ("path", "file", "file_name", "filename", "image_path", "uri", "url")
_TEXTS = (*TEXT_COLUMNS, "txt", "prompt", "content")


def find_id_column(row: Mapping[str, Any], asked: str | None) -> str:
    """Find the column of ids.

    Args:
        row: The first row of the table.
        asked: The one that was asked for; one that is called "id" or "__key__" if left out.

    Raises:
        WhenceError: There is no such column.
    """
    if asked is not None:
        _check_known(asked, row, "--id")
        return asked
    for name in ID_COLUMNS:
        if name in row:
            return name
    raise WhenceError(
        f"The table has no column 'id'. Say with --id which column tells its rows apart; the "
        f"columns are {', '.join(row)}."
    )


def find_content_column(
    row: Mapping[str, Any], asked: str | None, kind: Kind | None, id_column: str
) -> tuple[str, Kind]:
    """Find the column of photos or texts, and which of the two it holds.

    Args:
        row: The first row of the table.
        asked: The one that was asked for; found by types and usual names if left out.
        kind: What the model takes; if left out, photos are looked for first.
        id_column: The column of ids, which is only taken if it was asked for.

    Raises:
        WhenceError: There is no such column, or several could be meant.
    """
    if asked is not None:
        _check_known(asked, row, "--column")
        return asked, kind or _guess_kind(asked, row[asked])
    others = {name: value for name, value in row.items() if name != id_column}
    if kind != "text" and (photos := _list_photo_columns(others)):
        return _choose(photos, _PHOTO_COLUMNS, "photos"), "image"
    if kind != "image":
        texts = [name for name, value in others.items() if _is_text(name, value)]
        if texts:
            return _choose(texts, _TEXTS, "texts"), "text"
    what = "photos or texts" if kind is None else "photos" if kind == "image" else "texts"
    raise WhenceError(
        f"No column seems to hold {what}; the columns are {', '.join(row)}. Choose one with "
        f"--column."
    )


def _list_photo_columns(row: Mapping[str, Any]) -> list[str]:
    """List the columns that hold photos for sure; otherwise those of bytes, which may."""
    sure = [name for name, value in row.items() if _is_photo(name, value)]
    unsure = [n for n, value in row.items() if isinstance(value, bytes) and n not in _TEXTS]
    return sure or unsure


def _is_photo(name: str, value: object) -> bool:
    if isinstance(value, Mapping):
        return "bytes" in value or "path" in value
    if isinstance(value, bytes):
        return f".{name.lower()}" in IMAGES or _is_image_file(value)
    is_named = name.lower() in (*_PHOTO_COLUMNS, *_PATH_COLUMNS)
    if isinstance(value, str):
        return is_named and os.path.splitext(value)[1].lower() in IMAGES
    return isinstance(value, list | np.ndarray) and is_named


def _is_image_file(content: bytes) -> bool:
    """Whether bytes begin as an image file does."""
    try:
        with Image.open(io.BytesIO(content)):
            return True
    except Exception:  # what is no image may raise nearly anything
        return False


def _is_text(name: str, value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, bytes) and name in _TEXTS)


def _guess_kind(name: str, value: object) -> Kind:
    if isinstance(value, str):
        return "image" if os.path.splitext(value)[1].lower() in IMAGES else "text"
    return "text" if _is_text(name, value) and not _is_photo(name, value) else "image"


def _choose(found: list[str], usual: tuple[str, ...], what: str) -> str:
    """The only one; of several, the one with the most usual name."""
    named = [name for name in usual if name in found]
    if len(found) > 1 and not named:
        raise WhenceError(
            f"Several columns may hold {what}: {', '.join(found)}. Choose one with --column."
        )
    return found[0] if len(found) == 1 else named[0]


def _check_known(name: str, row: Mapping[str, Any], option: str) -> None:
    if name not in row:
        near = suggest_names(name, list(row))
        raise WhenceError(
            f"{option}: there is no column '{name}'.{near} The columns are {', '.join(row)}."
        )
