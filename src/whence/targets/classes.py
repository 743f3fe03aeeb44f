"""Which class is explained: indices from indices, names, or the model's own ranking."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError


def class_names_of(model: nn.Module) -> dict[int, str]:
    """Class names that a model carries: ``config.id2label``, or the labels of a timm model."""
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if isinstance(labels, Mapping):
        return {int(index): str(name) for index, name in labels.items()}
    timm_config = getattr(model, "pretrained_cfg", None)
    names = timm_config.get("label_names") if isinstance(timm_config, Mapping) else None
    return dict(enumerate(map(str, names))) if names else {}


def resolve(
    logits: Tensor, names: Mapping[int, str], target: Any = None, classes: Any = None
) -> Tensor:
    """Class indices to explain, (batch, n).

    Args:
        logits: (batch, classes).
        names: Names of class indices.
        target: None (the predicted class), an index, a name, or one of these for each sample.
        classes: A number k (the k highest), or indices or names for all samples, or for each.

    Raises:
        WhenceError: A class does not exist, or the numbers do not fit.
    """
    batch, count = logits.shape
    if target is not None and classes is not None:
        raise WhenceError("Give either target or classes, not both.")
    if classes is None:
        if target is None:
            return logits.argmax(1, keepdim=True)
        if _is_one(target):
            indices = [[index_of(target, names, count)]] * batch
        else:
            indices = [[index_of(one, names, count)] for one in target]
    elif _is_one(classes) and not isinstance(classes, str):
        if isinstance(classes, bool) or not hasattr(classes, "__index__"):
            raise WhenceError(f"classes is a number or a list of classes, not {classes!r}.")
        k = operator.index(classes)
        if not 1 <= k <= count:
            raise WhenceError(
                f"classes={k} asks for the top {k}, but the model has {count} classes."
            )
        return logits.topk(k).indices
    else:
        given = [classes] if isinstance(classes, str) else list(classes)
        if given and all(_is_one(one) for one in given):
            given = [given] * batch
        if any(_is_one(row) for row in given):
            raise WhenceError(f"Name classes for all samples, or a list for each, not {classes!r}.")
        indices = [[index_of(one, names, count) for one in row] for row in given]
    indices = _of_each(indices, batch)
    if not indices or not indices[0] or len({len(row) for row in indices}) > 1:
        raise WhenceError("Name at least one class, and as many for each sample.")
    return torch.tensor(indices, device=logits.device)


def of_samples(target: Any, classes: Any, rows: slice, batch: int) -> tuple[Any, Any]:
    """What was asked for of some samples of a batch, where it was said for each of them.

    Raises:
        WhenceError: It was said for another number of samples.
    """
    if rows == slice(0, batch):
        return target, classes
    if target is not None and not _is_one(target):
        target = _of_each(target, batch)[rows]
    if classes is not None and not _is_one(classes) and not all(map(_is_one, classes)):
        classes = _of_each(classes, batch)[rows]
    return target, classes


def _of_each(given: Any, batch: int) -> list[Any]:
    of_each = list(given)
    if len(of_each) != batch:
        raise WhenceError(f"{len(of_each)} targets were given for {batch} sample(s).")
    return of_each


def _is_one(value: Any) -> bool:
    """Whether a value names one class, rather than several."""
    if isinstance(value, str):
        return True
    if isinstance(value, Sequence | set | frozenset):
        return False
    return getattr(value, "ndim", 0) == 0


def index_of(value: Any, names: Mapping[int, str], count: int) -> int:
    """The index of a class given by index or name."""
    if isinstance(value, str):
        return _index_of_name(value, names, count)
    try:
        index = operator.index(value)
    except TypeError:
        raise WhenceError(f"A class is an index or a name, not {value!r}.") from None
    if isinstance(value, bool) or not 0 <= index < count:
        raise WhenceError(
            f"Class {value!r} does not exist: the model has {count} classes, 0 to {count - 1}."
        )
    return index


def _index_of_name(name: str, names: Mapping[int, str], count: int) -> int:
    wanted = name.strip().lower()
    # Labels may list synonyms: "tabby, tabby cat".
    spoken = {
        index: [label.lower(), *label.lower().split(", ")]
        for index, label in names.items()
        if index < count
    }
    found = [index for index, labels in spoken.items() if wanted == labels[0]]
    found = found or [index for index, labels in spoken.items() if wanted in labels]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise WhenceError(f"'{name}' names several classes: {found}. Give the index.")
    if wanted.isdecimal():
        return index_of(int(wanted), names, count)
    if not spoken:
        raise WhenceError(
            f"The model does not name its classes, so '{name}' cannot be found. Give an index, or "
            f"names: Explainer(model, class_names=[...])."
        )
    every = [label for labels in spoken.values() for label in dict.fromkeys(labels)]
    near = difflib.get_close_matches(wanted, every, n=3, cutoff=0.5)
    near = (
        near or sorted(every, key=lambda s: -difflib.SequenceMatcher(None, wanted, s).ratio())[:3]
    )
    listed = ", ".join(f"'{label}'" for label in near)
    raise WhenceError(f"There is no class '{name}'. Nearest: {listed}.")
