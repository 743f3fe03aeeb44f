"""The figures of the perturbation protocol: their columns, metrics and curves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from whence.benchmark.protocols.base import Better, Curve, Metric
from whence.benchmark.protocols.deletion import Unit
from whence.metrics.curves import area_under_curve, compute_curves
from whence.metrics.deletion import FRACTIONS, Order
from whence.metrics.pixels import Fill

Score = Literal["accuracy", "probability", "logit"]

ORDERS: dict[str, Order] = {"positive": "highest", "negative": "lowest"}
STEPS = (0.0, *FRACTIONS)
CLASSES = ("predicted", "target")

_BETTER: dict[str, Better] = {"positive": "lower", "negative": "higher", "difference": "higher"}
# The scores, and what is added to the names of columns that hold areas under them.
_SCORES: dict[Score, str] = {"accuracy": "", "probability": "_probability", "logit": "_logit"}


class PerturbationSetting(NamedTuple):
    """What is deleted, what is put there, and how names of columns and metrics tell it."""

    unit: Unit
    fill: Fill
    mark: tuple[str, ...] = ()

    def name_column(self, name: str) -> str:
        """The name of a column."""
        return "_".join([name, *self.mark])

    def name_metric(self, name: str) -> str:
        """The name of a metric."""
        return ", ".join([name, *self.mark])


def list_settings(units: Sequence[Unit], fills: Sequence[Fill]) -> list[PerturbationSetting]:
    """List every unit with every fill; names tell what there are several of."""
    return [
        PerturbationSetting(
            unit, fill, (*((unit,) if len(units) > 1 else ()), *((fill,) if len(fills) > 1 else ()))
        )
        for unit in units
        for fill in fills
    ]


def compute_figures(
    which: str,
    logits: Tensor,
    classes: Tensor,
    references: Tensor,
    steps: Sequence[float],
    kept: Collection[str],
    multi_label: bool = False,
) -> dict[str, Tensor]:
    """Compute the columns of a class: curves, areas under them, and their differences.

    Args:
        which: The name of the class, one of `CLASSES`.
        logits: (orders, photos, steps, classes), clean photos first.
        classes: (photos,), the watched class.
        references: (photos,), the class that accuracy is measured against.
        steps: The fractions that are deleted: `STEPS`, and 1 for deletion and insertion too.
        kept: The columns of curves that are wanted.
        multi_label: Whether several classes can hold at once.
    """
    watched, references = classes.repeat(2), references.repeat(2)
    found = compute_curves(logits.flatten(0, 1), watched, references, multi_label)
    # One copy from the device for all.
    curves = torch.stack([found[score] for score in _SCORES]).cpu()
    curves = curves.reshape(len(_SCORES), *logits.shape[:3])
    columns: dict[str, Tensor] = {}
    for at, order in enumerate(ORDERS):
        for (score, mark), of_score in zip(_SCORES.items(), curves[:, at], strict=True):
            curve = of_score[:, : len(STEPS)]
            area = area_under_curve(curve, STEPS)
            columns[f"{order}_{which}{mark}_auc"] = area / 100 if score == "logit" else area
            if f"{order}_{which}_{score}" in kept:
                columns[f"{order}_{which}_{score}"] = curve
            if score == "probability" and len(steps) > len(STEPS):
                # Deleting the lowest 90 % is inserting the highest 10 %, so the negative curve
                # read backwards is that of insertion.
                deletes = order == "positive"
                whole = area_under_curve(of_score if deletes else of_score.flip(1), steps)
                columns[f"{'deletion' if deletes else 'insertion'}_{which}"] = whole
    for mark in _SCORES.values():
        negative, positive = (columns[f"{n}_{which}{mark}_auc"] for n in ("negative", "positive"))
        columns[f"difference_{which}{mark}_auc"] = negative - positive
    return columns


def list_kept_curves(several: bool, scores: Sequence[Score]) -> list[str]:
    """List the columns of curves, those of several settings that are drawn alone."""
    return [
        f"{order}_{which}_{score}"
        for score in (scores if several else _SCORES)
        for which in (CLASSES[:1] if several else CLASSES)
        for order in ORDERS
    ]


def name_score(score: Score, scores: Sequence[Score]) -> str:
    """How names of metrics tell their score: not at all where accuracy is the only one."""
    return "" if score == "accuracy" and len(scores) == 1 else f", {score}"


def list_perturbation_metrics(
    settings: Sequence[PerturbationSetting], scores: Sequence[Score]
) -> list[Metric]:
    """List the columns of the table.

    Of several settings or scores, the difference of the predicted class is shown of each.
    """
    several = len(settings) * len(scores) > 1
    metrics: list[Metric] = []

    def add(names: Sequence[str], of: Sequence[Score], shown: bool, ranked: bool = False) -> None:
        """Add areas; what is ranked is known best, and shown for the predicted class at least."""
        metrics.extend(
            Metric(
                setting.name_metric(f"{name}, {which}") + name_score(score, scores),
                (setting.name_column(f"{name}_{which}{_SCORES[score]}_auc"),),
                _BETTER[name],
                shown=shown or (ranked and which == "predicted"),
                ranked=ranked and (which == "predicted" or not several),
            )
            for which in CLASSES
            for setting in settings
            for score in of
            for name in names
        )

    add(tuple(ORDERS), scores, shown=not several)
    add(("difference",), scores, shown=not several, ranked=True)
    kinds: dict[str, Better] = {"deletion": "lower", "insertion": "higher"}
    metrics += [
        Metric(
            setting.name_metric(f"{kind}, {which}"),
            (setting.name_column(f"{kind}_{which}"),),
            better,
            shown=not several,
        )
        for which in CLASSES
        for setting in settings
        for kind, better in kinds.items()
    ]
    others = [score for score in _SCORES if score not in scores]
    add((*ORDERS, "difference"), others, shown=False)
    return metrics


def list_perturbation_curves(
    settings: Sequence[PerturbationSetting], scores: Sequence[Score]
) -> list[Curve]:
    """List the panels of the chart: of several settings, the scores of the predicted class."""
    kept = [name.split("_") for name in list_kept_curves(len(settings) > 1, scores)]
    return [
        Curve(
            f"{setting.name_metric(order)}, {which} class: {score}",
            setting.name_column(f"{order}_{which}_{score}"),
            STEPS,
            f"share of {setting.unit} deleted",
            score != "logit",
        )
        for setting in settings
        for order, which, score in kept
    ]
