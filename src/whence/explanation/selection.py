"""Select samples of an explanation."""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from whence.errors import WhenceError

if TYPE_CHECKING:
    from whence.explanation.explanation import Explanation

One = TypeVar("One", bound="Explanation")

_LISTS = ("target_names", "areas", "details", "photos", "media", "image_sizes", "word_scores")


def select_samples(explanation: One, samples: int | slice) -> One:
    """Select one sample, or some, as a batch; evidence is left out."""
    batch = len(explanation.scores)
    if isinstance(samples, str):
        raise WhenceError("This explanation is of one input; its samples have numbers: result[0].")
    if not isinstance(samples, slice):
        index = operator.index(samples)
        if not -batch <= index < batch:
            raise IndexError(f"There is no sample {index}; the batch has {batch}.")
        samples = slice(index % batch, index % batch + 1)
    chosen: dict[str, Any] = {"evidence": None}
    for field in dataclasses.fields(explanation):
        value = getattr(explanation, field.name)
        if value is not None and (isinstance(value, Tensor) or field.name in _LISTS):
            chosen[field.name] = value[samples]
    if explanation.tokens is not None:
        chosen["tokens"] = explanation.tokens.select_samples(samples)
    return dataclasses.replace(explanation, **chosen)
