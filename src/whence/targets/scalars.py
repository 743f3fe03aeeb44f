"""Scalars: what is explained of a batch, as functions of one row of outputs for each sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from whence.targets.areas import TargetArea
from whence.targets.base import Place, Scalar, Target, TargetContext
from whence.targets.classes import to_probabilities

_RATHER = " rather than "


class Scalars(ABC):
    """The scalars that are explained, as many for each sample.

    Outputs are what the model returned, as one row for each sample: the logits of a classifier, or
    whatever a `Readout` has joined.
    """

    @property
    @abstractmethod
    def indices(self) -> Tensor:
        """(batch, n), indices of classes or tokens."""

    @abstractmethod
    def select(self, numbers: Sequence[int]) -> Scalars:
        """Some of them."""

    @abstractmethod
    def values(self, outputs: Tensor, samples: Tensor) -> Tensor:
        """The scalars, (n, rows), of rows of these samples; autograd can go through."""

    @abstractmethod
    def probabilities(self, outputs: Tensor, samples: Tensor) -> Tensor:
        """Probabilities, (n, rows); where there are none, the scalars themselves.

        For target and against it is the difference.
        """

    @abstractmethod
    def make_seeds(
        self, outputs: Tensor, *, by_rules: bool = False, centered: bool = False
    ) -> Tensor:
        """Where a backward pass starts: (n, batch, columns), the scalars' gradient at the outputs.

        Args:
            outputs: (batch, columns).
            by_rules: Whether values then pass operations by rules, not as plain gradients.
            centered: Whether a logit starts less the mean of those that compete with it in a
                softmax, which does not see what is added to all.
        """

    def make_common_seeds(self, outputs: Tensor) -> Tensor:
        """Where methods start that do not tell classes apart."""
        return self.make_seeds(outputs)

    @property
    def count(self) -> int:
        """How many for each sample."""
        return self.indices.shape[1]

    def split(self, at_once: int) -> list[Scalars]:
        """Groups of at most so many."""
        starts = range(0, self.count, at_once)
        return [self.select(range(at, min(at + at_once, self.count))) for at in starts]


@dataclass(frozen=True, eq=False)
class ClassScalars(Scalars):
    """Logits of classes, or their differences from others.

    Attributes:
        classes: (batch, n) class indices.
        against: (batch, n) class indices whose logits are subtracted.
        multi_label: Whether several classes can hold at once.
    """

    classes: Tensor
    against: Tensor | None = None
    multi_label: bool = False

    @property
    @override
    def indices(self) -> Tensor:
        return self.classes

    @override
    def select(self, numbers: Sequence[int]) -> ClassScalars:
        every = list(numbers)
        # Neighbours are chosen without their numbers, which a GPU would have to wait for.
        are_neighbours = every == list(range(every[0], every[-1] + 1))
        chosen = slice(every[0], every[-1] + 1) if are_neighbours else every
        against = None if self.against is None else self.against[:, chosen]
        return ClassScalars(self.classes[:, chosen], against, self.multi_label)

    @override
    def values(self, outputs: Tensor, samples: Tensor) -> Tensor:
        values = outputs.gather(1, self.classes[samples]).T
        if self.against is None:
            return values
        return values - outputs.gather(1, self.against[samples]).T

    @override
    def probabilities(self, outputs: Tensor, samples: Tensor) -> Tensor:
        return self.values(to_probabilities(outputs, self.multi_label), samples)

    @override
    def make_seeds(
        self, outputs: Tensor, *, by_rules: bool = False, centered: bool = False
    ) -> Tensor:
        seeds = make_one_hot(self.classes, outputs)
        if self.against is not None:
            return seeds - make_one_hot(self.against, outputs)
        if not centered or self.multi_label or outputs.shape[1] < 2:
            return seeds
        return seeds - 1 / outputs.shape[1]

    @override
    def make_common_seeds(self, outputs: Tensor) -> Tensor:
        return make_one_hot(outputs.argmax(1, keepdim=True), outputs)


def make_one_hot(classes: Tensor, outputs: Tensor) -> Tensor:
    """One-hot rows, (n, batch, columns), of class indices, (batch, n)."""
    seeds = outputs.new_zeros(classes.shape[1], *outputs.shape)
    return seeds.scatter_(2, classes.T[..., None], 1.0)


class Readout:
    """Joins what targets read of a model's output to one row for each sample.

    Args:
        targets: The targets.
        context: What is known of the model and its inputs.
    """

    def __init__(self, targets: Iterable[Target], context: TargetContext) -> None:
        self.context = context
        self._places: dict[object, Place] = {}
        self._shapes: list[torch.Size] = []
        self._targets: list[tuple[Target, object]] = []
        for target in targets:
            place = target.make_place(context)
            known = self._places.setdefault(place.key, place)
            if known is not place:
                known.merge(place)
            self._targets.append((target, place.key))

    def __call__(self, returned: Any) -> Tensor:
        """What is read of what the model returned, (batch, columns)."""
        parts = [place.read(returned) for place in self._places.values()]
        self._shapes = [part.shape[1:] for part in parts]
        rows = [part if part.dim() == 2 else part.flatten(1) for part in parts]
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)

    def find_whole(self, returned: Any) -> Tensor:
        """All that there is where targets are read, (batch, columns)."""
        return torch.cat([place.find(returned).flatten(1) for place in self._places.values()], 1)

    def resolve(self, outputs: Tensor) -> list[list[Scalar]]:
        """Decide what each target leaves to the model."""
        return [
            target.resolve(place := self._places[key], self.select(outputs, place), self.context)
            for target, key in self._targets
        ]

    def select(self, outputs: Tensor, place: Place) -> Tensor:
        """The part of joined outputs that belongs to a place, in its own shape."""
        parts = torch.split(outputs, [shape.numel() for shape in self._shapes], 1)
        number = list(self._places).index(place.key)
        return parts[number].reshape(-1, *self._shapes[number])


class Contrast(NamedTuple):
    """A scalar, and one to subtract from it."""

    target: Scalar
    against: Scalar | None = None


@dataclass(frozen=True, eq=False)
class ReadScalars(Scalars):
    """Scalars of anything that a model returns.

    Attributes:
        readout: Joins what the model returned.
        contrasts: The scalars.
    """

    readout: Readout
    contrasts: list[Contrast]

    @property
    @override
    def indices(self) -> Tensor:
        return torch.tensor([one.target.indices for one in self.contrasts]).T

    @property
    def names(self) -> list[list[str]]:
        """For each sample and scalar, its name."""
        return [
            [join_names(*(s.names[n] for s in one if s is not None)) for one in self.contrasts]
            for n in range(self.readout.context.batch)
        ]

    @property
    def areas(self) -> list[list[TargetArea | None]] | None:
        """For each sample and scalar, where in the picture it lies; None if all lie nowhere."""
        areas = [one.target.areas for one in self.contrasts]
        if not any(areas):
            return None
        batch = range(self.readout.context.batch)
        return [[None if of is None else of[n] for of in areas] for n in batch]

    @override
    def select(self, numbers: Sequence[int]) -> ReadScalars:
        return ReadScalars(self.readout, [self.contrasts[n] for n in numbers])

    @override
    def values(self, outputs: Tensor, samples: Tensor) -> Tensor:
        return torch.stack(
            [self._subtract(one, "values", outputs, samples) for one in self.contrasts]
        )

    @override
    def probabilities(self, outputs: Tensor, samples: Tensor) -> Tensor:
        chances = []
        for one in self.contrasts:
            known = all(
                s.probabilities(self.readout.select(outputs, s.place), samples) is not None
                for s in one
                if s is not None
            )
            what = "probabilities" if known else "values"
            chances.append(self._subtract(one, what, outputs, samples))
        return torch.stack(chances)

    @override
    def make_seeds(
        self, outputs: Tensor, *, by_rules: bool = False, centered: bool = False
    ) -> Tensor:
        samples = torch.arange(len(outputs), device=outputs.device)
        what, options = "propagated_values" if by_rules else "values", dict[str, bool]()
        if centered:
            what, options = "centered_values", {"by_rules": by_rules}
        seeds = []
        with torch.inference_mode(False), torch.enable_grad():
            leaf = outputs.detach().clone().requires_grad_()
            for one in self.contrasts:
                value = self._subtract(one, what, leaf, samples, **options)
                (gradient,) = torch.autograd.grad(value.sum(), leaf)
                seeds.append(gradient)
        return torch.stack(seeds)

    def read_probabilities(self, outputs: Tensor) -> Tensor:
        """(batch, n), the probability of each target; NaN where there is none."""
        return self._read_each(
            "probabilities", outputs, outputs.new_full((len(outputs),), torch.nan)
        )

    def read_logits(self, outputs: Tensor) -> Tensor:
        """The logits that targets are of, (batch, n, classes); (batch, 0) if they are of none."""
        return self._read_each("logits", outputs, outputs[:, :0])

    def _read_each(self, what: str, outputs: Tensor, missing: Tensor) -> Tensor:
        samples = torch.arange(len(outputs), device=outputs.device)
        found = []
        for one, _ in self.contrasts:
            value = getattr(one, what)(self.readout.select(outputs, one.place), samples)
            found.append(missing if value is None else value.to(outputs.dtype))
        same = len({one.shape for one in found}) == 1
        return torch.stack(found, 1) if same else outputs[:, :0]

    def _subtract(
        self, one: Contrast, what: str, outputs: Tensor, samples: Tensor, **options: bool
    ) -> Tensor:
        """One of the functions of a scalar; target less against."""
        values: list[Tensor] = [
            getattr(scalar, what)(self.readout.select(outputs, scalar.place), samples, **options)
            for scalar in one
            if scalar is not None
        ]
        return values[0] if len(values) == 1 else values[0] - values[1]


def join_names(target: str, against: str | None = None) -> str:
    """The name of a target, or of a target against another."""
    if against is None:
        return target
    # Tokens may begin with the space before their word.
    return f"{target.strip() or target}{_RATHER}{against.strip() or against}"


def has_contrast(name: str) -> bool:
    """Whether a name is one of a target against another."""
    return _RATHER in name
