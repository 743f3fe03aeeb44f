"""Deletion curves of one input: the result of measuring faithfulness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from PIL import Image
from torch import Tensor

from whence.errors import WhenceError
from whence.faithfulness.photos import PhotoUnits
from whence.faithfulness.texts import TextUnits
from whence.metrics.curves import area_under_curve
from whence.metrics.deletion import FRACTIONS, count_units

CurveOrder = Literal["most", "least", "random"]

STEPS = (0.0, *FRACTIONS)
"""Fraction of the units that is deleted at each step; nothing at the first."""


@dataclass(frozen=True)
class MethodCurves:
    """Probability of one class as the units that one method scored are deleted.

    Attributes:
        method: The name of the method.
        target: Index of the class.
        class_name: Its name, or "class 281".
        class_specific: Whether the method's scores depend on the class.
        most: Probability of the class at each of `STEPS`, the most relevant units deleted first.
        least: The same, the least relevant first.
        random: The same for all methods: the mean of random orders; None if none were drawn.
    """

    method: str
    target: int
    class_name: str
    class_specific: bool
    most: tuple[float, ...]
    least: tuple[float, ...]
    random: tuple[float, ...] | None
    _ranks: Mapping[str, Tensor] = field(repr=False, compare=False)
    _units: PhotoUnits | TextUnits = field(repr=False, compare=False)

    @property
    def steps(self) -> tuple[float, ...]:
        """Fraction of the units that is deleted at each step."""
        return STEPS

    def get_curve(self, order: CurveOrder) -> tuple[float, ...]:
        """The probabilities for an order of deletion."""
        if order not in get_args(CurveOrder):
            raise WhenceError(f"The order is one of {get_args(CurveOrder)}, not {order!r}.")
        curve = {"most": self.most, "least": self.least, "random": self.random}[order]
        if curve is None:
            raise WhenceError("No random orders were drawn; ask for some with draws=5.")
        return curve

    def auc(self, order: CurveOrder) -> float:
        """Area under a curve, times 100, from nothing to 90 % deleted: at most 90."""
        values = torch.tensor(self.get_curve(order), dtype=torch.float64)
        return float(area_under_curve(values, STEPS))

    @property
    def score(self) -> float:
        """Faithfulness: the area of least-first minus that of most-first, from -90 to 90.

        If scores are faithful, the probability falls at once when the highest are deleted, and
        stays when the lowest are: the area between the curves is large. Scores that know nothing
        of the model get about 0, reversed scores less. It says how well scores order the units for
        this model, this input and this kind of deletion; not whether the model is right, nor
        whether people would agree. A class that hardly loses anything, or that has little to lose,
        gets a small score from every method: compare methods on one input, not inputs.
        """
        return self.auc("least") - self.auc("most")

    def get_mask(self, step: int, order: CurveOrder = "most") -> Tensor:
        """The deleted units at a step, counted from 0: (height, width) of pixels, or (words,).

        Of the random orders, it is the first.
        """
        self.get_curve(order)
        if not 0 <= step < len(STEPS):
            raise WhenceError(f"The steps are 0 to {len(STEPS) - 1}; there is no step {step}.")
        ranks = self._ranks[order]
        return self._units.arrange(ranks < count_units(len(ranks), STEPS)[step])

    def get_input(self, step: int, order: CurveOrder = "most") -> Image.Image | str:
        """The model's input at a step: a photo of the size that it sees, or a text."""
        return self._units.render(self.get_mask(step, order).flatten())


@dataclass(frozen=True)
class Faithfulness:
    """The deletion curves of one input, for every method and class.

    Attributes:
        curves: Methods in the order of the request, and for each its classes.
        words: The words that are deleted; None for a photo.
    """

    curves: tuple[MethodCurves, ...]
    words: tuple[str, ...] | None = None

    @property
    def targets(self) -> tuple[int, ...]:
        """The classes, as indices, in the order of the request."""
        return tuple(dict.fromkeys(one.target for one in self.curves))

    def get(self, method: str, target: int | None = None) -> MethodCurves:
        """The curves of a method and a class; of the first class if none is named."""
        target = self.targets[0] if target is None else target
        for one in self.curves:
            if (one.method, one.target) == (method, target):
                return one
        raise WhenceError(f"'{method}' was not measured for class {target}.")

    def rank_methods(self, target: int | None = None) -> list[MethodCurves]:
        """The methods for a class (the first, if none is named), the most faithful first."""
        target = self.targets[0] if target is None else target
        return sorted((c for c in self.curves if c.target == target), key=lambda c: -c.score)

    def find_best(self, target: int | None = None) -> list[MethodCurves]:
        """The most faithful method for a class: several if they tie."""
        ranked = self.rank_methods(target)
        return [one for one in ranked if one.score > ranked[0].score - 1e-9]
