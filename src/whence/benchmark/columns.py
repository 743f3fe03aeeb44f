"""Turn rows into columns: one array for each name, with NaN where a row has no number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[Any]
Columns: TypeAlias = dict[str, Column]


def to_columns(rows: Sequence[Mapping[str, object]]) -> Columns:
    """Turn rows into columns: texts as objects, numbers (rows,), lists of numbers (rows, n)."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return {key: _to_column([row.get(key) for row in rows]) for key in keys}


def _to_column(values: Sequence[object]) -> Column:
    if any(isinstance(value, str) for value in values):
        return np.array(values, dtype=object)
    length = max((len(value) for value in values if isinstance(value, list | tuple)), default=None)
    if length is None:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    rows = np.full((len(values), length), np.nan)
    for row, value in zip(rows, values, strict=True):
        if isinstance(value, list | tuple):
            row[: len(value)] = [np.nan if one is None else one for one in value]
    return rows


def concatenate_columns(parts: Sequence[Columns]) -> Columns:
    """Concatenate columns; a column that a part lacks is NaN there, or None among texts."""
    keys = list(dict.fromkeys(key for part in parts for key in part))
    pairs = [(part, np.full(len(part["sample"]), np.nan)) for part in parts]
    return {key: _concatenate([part.get(key, nan) for part, nan in pairs]) for key in keys}


def _concatenate(arrays: list[Column]) -> Column:
    if any(array.dtype == object for array in arrays):
        texts = [a if a.dtype == object else np.full(len(a), None, dtype=object) for a in arrays]
        return np.concatenate(texts)
    width = max((array.shape[1] for array in arrays if array.ndim == 2), default=None)
    if width is None:
        return np.concatenate(arrays)
    whole = np.full((sum(map(len, arrays)), width), np.nan)
    at = 0
    for array in arrays:
        if array.ndim == 2:
            whole[at : at + len(array), : array.shape[1]] = array
        at += len(array)
    return whole
