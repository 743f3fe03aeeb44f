"""Columns of pickled Python objects, which run code when they are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from whence.errors import WhenceError

# Where ray.data is imported, reading a value of this type of Arrow's unpickles it.
_PICKLED = "ray.data.arrow_pickled_object"


def refuse_pickles(schema: Any, columns: Iterable[str] | None = None) -> None:
    """Refuse columns of pickled Python objects, before a value of them is read.

    Args:
        schema: A `pyarrow.Schema`.
        columns: Those that will be read; all if left out.

    Raises:
        WhenceError: One of them holds pickles.
    """
    for name in schema.names if columns is None else columns:
        if name in schema.names and has_pickles(schema.field(name).type):
            raise WhenceError(
                f"The column '{name}' holds pickled Python objects, which can run code when they "
                f"are opened. Write the bytes of photos, or texts, instead."
            )


def has_pickles(kind: Any) -> bool:
    """Whether values of a `pyarrow.DataType` hold pickled Python objects, at any depth."""
    if getattr(kind, "extension_name", None) == _PICKLED:
        return True
    names = ("value_type", "key_type", "item_type", "storage_type")
    inner = [getattr(kind, name) for name in names if hasattr(kind, name)]
    if not inner:  # of a structure or a union
        inner = [kind.field(place).type for place in range(kind.num_fields)]
    return any(map(has_pickles, inner))
