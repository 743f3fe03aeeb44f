"""The orders in which units of one input are deleted, and the classes that are watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.explanation import Explanation
from whence.faithfulness.photos import PhotoUnits
from whence.faithfulness.result import Faithfulness, MethodCurves
from whence.faithfulness.sparse import interpolate_left_out
from whence.faithfulness.texts import TextUnits
from whence.metrics.curves import compute_curves
from whence.metrics.deletion import rank_units


@dataclass(frozen=True)
class _WatchedClass:
    """A class that an explanation has scores for."""

    method: str
    explanation: Explanation
    target: int
    name: str


@dataclass(frozen=True)
class InputOrders:
    """Orders in which the units of one input are deleted.

    Attributes:
        units: What is deleted.
        ranks: (orders, units): when each unit is deleted. The most relevant first for each of
            `classes`, the least relevant first for each, then the random orders.
        clean: (1, classes of the model), logits with nothing deleted.
        classes: Methods in the order given, and for each its classes.
        against: The class that they were explained against, if any.
    """

    units: PhotoUnits | TextUnits
    ranks: Tensor
    clean: Tensor
    classes: list[_WatchedClass]
    against: int | None

    def watch(self, logits: Tensor) -> Tensor:
        """Probability of each order's class, without random orders: (orders, steps)."""
        count = len(self.classes)
        curves = [
            self._watch_class(logits[[at, count + at]], one) for at, one in enumerate(self.classes)
        ]
        return torch.stack(curves, 1).flatten(0, 1)

    def collect(self, logits: Tensor) -> Faithfulness:
        """The curves, of logits (orders, fractions, classes); steps left out are not numbers."""
        logits = torch.cat([self.clean.expand(len(logits), 1, -1).to(logits), logits], 1)
        ranks = self.ranks.cpu()  # curves keep views of it, to show inputs without deleted units
        count = len(self.classes)
        values = interpolate_left_out(self.watch(logits))
        curves = []
        for at, one in enumerate(self.classes):
            by_order, random = {"most": ranks[at], "least": ranks[count + at]}, None
            if len(ranks) > 2 * count:
                by_order["random"] = ranks[2 * count]
                random = tuple(self._watch_class(logits[2 * count :], one).mean(0).tolist())
            curves.append(
                MethodCurves(
                    method=one.method,
                    target=one.target,
                    class_name=one.name,
                    class_specific=one.explanation.class_specific,
                    most=tuple(values[at].tolist()),
                    least=tuple(values[count + at].tolist()),
                    random=random,
                    _ranks=by_order,
                    _units=self.units,
                )
            )
        return Faithfulness(tuple(curves), self.units.words)

    def _watch_class(self, logits: Tensor, one: _WatchedClass) -> Tensor:
        """Probability of a class, (orders, steps), among all classes or two."""
        target, multi_label = one.target, one.explanation.multi_label
        if self.against is not None:
            logits, target, multi_label = logits[..., [target, self.against]], 0, False
        classes = torch.full((len(logits),), target, device=logits.device)
        return compute_curves(logits, classes, multi_label=multi_label)["probability"].cpu()


def find_orders(
    units: PhotoUnits | TextUnits,
    explanations: Mapping[str, Explanation],
    against: int | None = None,
    draws: int = 0,
    seed: int = 0,
) -> InputOrders:
    """Order the units of one input by the scores of its explanations, and at random.

    Args:
        units: Of the input.
        explanations: Each of one class or several, by the names of their methods.
        against: The class that the classes were explained against, if any.
        draws: How many random orders there are.
        seed: Of the random orders.
    """
    first = next(iter(explanations.values()))
    scores = torch.cat([units.score(one) for one in explanations.values()])
    ranks = [rank_units(scores, "highest"), rank_units(scores, "lowest")]
    if draws:
        drawn = units.draw_scores(draws, seed, first).to(scores)
        ranks.append(rank_units(drawn, "highest"))
    classes = [
        _WatchedClass(name, explanation, target, shown.name)
        for name, explanation in explanations.items()
        for target, shown in zip(
            explanation.target[0].reshape(-1).tolist(), explanation.classes(), strict=True
        )
    ]
    return InputOrders(units, torch.cat(ranks).int(), first.logits[:1], classes, against)
