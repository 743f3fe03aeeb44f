"""Items of datasets, data loaders and iterators: the photos, texts or tensors in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from whence._util.near_names import suggest_names
from whence.errors import WhenceError
from whence.inputs.sounds import Recording, sound_from_array
from whence.inputs.sources import NOUNS, Content, Kind, guess_kind, read_input
from whence.inputs.tables import TEXT_COLUMNS
from whence.inputs.videos import VideoClip, is_animated

Batch = Tensor | Mapping[str, Any] | list[Content]
"""Tensors as a model takes them, or photos, texts, videos or sounds."""

# What collators of transformers add for training, which would only cost a loss.
_LABELS = ("label", "labels", "label_ids")
# Names of inputs that models of transformers take, and the dimensions of a batch of them.
_DIMENSIONS = {"input_ids": 2, "attention_mask": 2, "token_type_ids": 2, "pixel_values": 4}


def is_stream(what: object) -> bool:
    """Whether something holds many inputs that are read one by one, not a list or one input."""
    if isinstance(what, str | bytes | list | tuple | Mapping | Tensor | np.ndarray):
        return False
    return hasattr(what, "__iter__") or (hasattr(what, "__getitem__") and hasattr(what, "__len__"))


def iterate(what: Any) -> Iterator[Any]:
    """Iterate over the items of a dataset, a data loader or anything else that has items.

    Labels are left out. A tensor that a dataset of torch holds becomes a batch of one.

    Raises:
        WhenceError: It is a table, whose items are the names of columns.
    """
    if hasattr(what, "columns"):
        raise WhenceError(
            f"A {type(what).__name__} is a table; explain a column of it: "
            f"explain(list(table['text']))."
        )
    items = iter(what) if hasattr(what, "__iter__") else map(what.__getitem__, range(len(what)))
    inputs = map(drop_labels, items)
    if not isinstance(what, Dataset):
        return inputs
    return (one[None] if isinstance(one, Tensor) else one for one in inputs)


def read_batch(
    what: object,
    column: str | None = None,
    kind: Kind | None = None,
    strings: Kind | None = None,
    words: bool = True,
) -> Batch:
    """Read a photo, a text, a video, a sound, a list of them, a row, or a batch of tensors.

    Args:
        what: What to read. Labels among the tensors of a mapping are left out.
        column: Of a row, which column to explain; if left out, the one with a photo, or the text.
        kind: Of a row, whether to look for a photo or a text; if left out, a photo goes first.
        strings: ``"text"`` says that strings are texts, the others that they are paths; if left
            out, those that name a file are paths. What is found in a row is text. ``"video"`` also
            says that a list of pictures is one video.
        words: Whether one word that names no file is text.

    Raises:
        WhenceError: It is nothing that can be explained.
    """
    if isinstance(what, Mapping):
        if _is_sound(what):
            return [_read_sound(what)]
        if any(hasattr(value, "column_names") for value in what.values()):
            raise WhenceError(
                f"The dataset has several parts: {', '.join(what)}; explain one of them: "
                f"explain(dataset[{next(iter(what))!r}])."
            )
        if column is None and is_prepared(what):
            return what if hasattr(what, "encodings") else _collect_tensors(what)
        strings = strings or ("text" if column is None else None)
        what = _pick(what, column, kind)
    if isinstance(what, Tensor):
        return what
    listed = list(what) if isinstance(what, list | tuple) else [what]
    if strings == "video" and listed and all(map(_is_picture, listed)):
        return [VideoClip.from_frames([_read_frame(one) for one in listed])]
    if not listed:
        raise WhenceError("Nothing to explain: the list is empty.")
    if column is None and any(isinstance(one, Mapping) for one in listed):
        strings = strings or "text"
    picked = [one if _is_sound(one) else _pick(one, column, kind) for one in listed]
    batch = [
        _read_sound(one) if _is_sound(one) else read_input(one, strings, words) for one in picked
    ]
    if len(set(map(type, batch))) > 1:
        names = {find_kind(one) for one in batch}
        nouns = {**NOUNS, "image": "photos"}
        kinds = [noun for kind, noun in nouns.items() if kind in names]
        raise WhenceError(
            f"{' and '.join(kinds).capitalize()} need different models; explain them apart."
        )
    return batch


def _read_sound(value: Mapping[str, Any]) -> Recording:
    return sound_from_array(np.asarray(value["array"]), int(value["sampling_rate"]))


def find_kind(content: Content) -> Kind:
    """Find the kind of what was read."""
    if isinstance(content, str):
        return "text"
    if isinstance(content, VideoClip):
        return "video"
    return "audio" if isinstance(content, Recording) else "image"


def _is_picture(one: object) -> bool:
    """Whether something may be one frame of a video: a photo, or the path of one."""
    if isinstance(one, np.ndarray):
        return one.ndim in (2, 3)
    if isinstance(one, str | Path):
        return guess_kind(Path(one)) == "image" and not is_animated(Path(one))
    return isinstance(one, Image.Image)


def _read_frame(one: object) -> Image.Image:
    read = read_input(one, "image")
    assert isinstance(read, Image.Image)
    return read


def _pick(row: object, column: str | None, kind: Kind | None) -> object:
    """The photo or text of a row; anything else as it is."""
    return row[find_column(row, column, kind)] if isinstance(row, Mapping) else row


def is_prepared(row: Mapping[str, Any]) -> bool:
    """Whether a mapping holds what a model takes, by its type or its name."""
    return any(isinstance(value, Tensor) or name in _DIMENSIONS for name, value in row.items())


def _collect_tensors(row: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a mapping without labels; a row that is no batch becomes a batch of one."""
    tensors = {}
    for name, value in row.items():
        if isinstance(value, Tensor) or name in _DIMENSIONS:
            tensors[name] = torch.as_tensor(value)
    alone = any(x.dim() < _DIMENSIONS.get(name, 0) for name, x in tensors.items())
    return {n: x[None] if alone else x for n, x in tensors.items() if n not in _LABELS}


def drop_labels(item: object) -> object:
    """The input of a pair of an input and its label; the inputs of a batch of pairs."""
    if not isinstance(item, list | tuple) or not item:
        return item
    if len(item) > 1 and all(map(_is_label, item[1:])):
        return item[0]
    if all(isinstance(one, tuple) and len(one) > 1 and _is_label(one[1]) for one in item):
        return [one[0] for one in item]
    return item


def _is_label(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.dim() < 2
    return value is None or isinstance(value, int | float | np.number)


def find_column(row: Mapping[str, Any], column: str | None, kind: Kind | None) -> str:
    """Find the column of a row that holds its photo or its text.

    Args:
        row: Its values, or lists of values of several rows, by the names of the columns.
        column: The one that was asked for.
        kind: What to look for; if left out, a photo, and otherwise a text.

    Raises:
        WhenceError: There is no such column, or several could be meant.
    """
    names = ", ".join(map(str, row)) or "none"
    if column is not None:
        if column not in row:
            near = suggest_names(column, map(str, row))
            raise WhenceError(f"There is no column '{column}'.{near} The columns are {names}.")
        return column
    if "text_pair" in row:
        raise WhenceError(
            "A pair of texts is explained as tokens: explain(tokenizer(text, text_pair, "
            "return_tensors='pt'), model=…)."
        )
    kinds: dict[str, Kind | None] = {name: _find_kind(value) for name, value in row.items()}
    for wanted in ("image", "text") if kind is None else (kind,):
        found = [name for name, one in kinds.items() if one == wanted]
        usual = [name for name in found if name in (wanted, *TEXT_COLUMNS)]
        if len(found) == 1 or usual:
            return (usual or found)[0]
        if found:
            raise WhenceError(
                f"Several columns hold {wanted}s: {', '.join(found)}. Choose one with column=…."
            )
    what = f"{kind}s" if kind else "photos or texts"
    hint = " Choose one with column=…, if it holds paths or arrays of photos."
    raise WhenceError(
        f"No column holds {what}; the columns are {names}.{hint if kind != 'text' else ''}"
    )


def _find_kind(value: object) -> Kind | None:
    """The kind of input that a column holds, by one value or a list of them."""
    if isinstance(value, list | tuple) and value:
        value = value[0]
    if _is_sound(value):
        return "audio"
    return "image" if isinstance(value, Image.Image) else "text" if isinstance(value, str) else None


def _is_sound(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether this is a sound as the library datasets has it."""
    return isinstance(value, Mapping) and "array" in value and "sampling_rate" in value
