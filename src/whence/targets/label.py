"""A class as one of several targets, which need not all be classes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.targets.base import LogitsPlace, Place, Scalar, Target, TargetContext, pick_columns
from whence.targets.classes import OneClass, find_class_index


@dataclass(frozen=True)
class LabelTarget(Target):
    """The logit of a class: by index or name, or the highest."""

    label: OneClass | None

    @override
    def make_place(self, context: TargetContext) -> Place:
        return LogitsPlace(context.find_logits)

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
class LabelScalar(Scalar):
    """The logit of a class."""

    place: Place
    indices: list[int]
    names: list[str]

    @override
    def values(self, read: Tensor, samples: Tensor) -> Tensor:
        return pick_columns(read, samples, self.indices)

    @override
    def probabilities(self, read: Tensor, samples: Tensor) -> Tensor | None:
        if read.shape[1] < 2:
            return None
        return pick_columns(read.softmax(1), samples, self.indices)

    @override
    def logits(self, read: Tensor, samples: Tensor) -> Tensor:
        return read
