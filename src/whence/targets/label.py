"""A class as one of several targets, which need not all be classes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.targets.base import LogitScalar, LogitsTarget, Place, Scalar, TargetContext
from whence.targets.classes import OneClass, find_class_index


@dataclass(frozen=True)
class LabelTarget(LogitsTarget):
    """The logit of a class: by index or name, or the highest."""

    label: OneClass | None

    @override
    def resolve(self, place: Place, read: Tensor, context: TargetContext) -> list[Scalar]:
        if read.dim() != 2:
            raise WhenceError(
                f"A class is a target of models that give logits of shape (batch, classes), and "
                f"this one gives {tuple(read.shape)}."
            )
        names, count = context.class_names, read.shape[1]
        if self.label is None:
            indices = read.argmax(1).tolist()
        else:
            indices = [find_class_index(self.label, names, count)] * len(read)
        return [LabelScalar(place, indices, [names.get(i, f"class {i}") for i in indices])]


@dataclass
class LabelScalar(LogitScalar):
    """The logit of a class."""

    place: Place
    indices: list[int]
    names: list[str]

    @override
    def logits(self, read: Tensor, samples: Tensor) -> Tensor:
        return read
