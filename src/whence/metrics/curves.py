"""Compute curves of a class over the steps of a deletion test, and the areas under them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.targets import to_probabilities


class ClassCurves(TypedDict):
    """Curves of one class, each (n, steps) in float64.

    `accuracy` is 1 where the label has the highest logit (the first of several equal), else 0.
    """

    accuracy: Tensor
    probability: Tensor
    logit: Tensor


def compute_curves(
    logits: Tensor, classes: Tensor, labels: Tensor | None = None, multi_label: bool = False
) -> ClassCurves:
    """Compute accuracy, probability and logit of a class at each step.

    Args:
        logits: (n, steps, classes).
        classes: (n,), the watched class of each sample.
        labels: (n,), the class that accuracy is measured against; `classes` if left out.
        multi_label: Whether several classes can hold at once.
    """
    labels = classes if labels is None else labels
    if logits.dim() != 3 or not classes.shape == labels.shape == logits.shape[:1]:
        raise WhenceError(
            f"Logits (n, steps, classes) and classes (n,) have to fit together, not "
            f"{tuple(logits.shape)} and {tuple(classes.shape)}."
        )
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < logits.shape[2]:
        raise WhenceError(f"Classes have to be between 0 and {logits.shape[2] - 1}.")
    logits = logits.double()
    at = classes.to(logits.device).long()[:, None, None].expand(*logits.shape[:2], 1)
    return {
        "accuracy": (logits.argmax(-1) == labels.to(logits.device)[:, None]).double(),
        "probability": to_probabilities(logits, multi_label).gather(-1, at)[..., 0],
        "logit": logits.gather(-1, at)[..., 0],
    }


def area_under_curve(values: Tensor, fractions: Sequence[float]) -> Tensor:
    """Compute the area (...) under curves (..., steps) by the trapezoid rule, times 100.

    It is not divided by the range of fractions: as published, a curve that stays at 1 from 0 to 0.9
    has 90. Fractions are in rising order, 0 first for the clean value.
    """
    steps = torch.tensor(fractions, dtype=torch.float64, device=values.device)
    if values.shape[-1] != len(steps) or len(steps) < 2 or (steps.diff() <= 0).any():
        raise WhenceError(
            f"{values.shape[-1]} values need as many fractions, two or more in rising order; the "
            f"clean value at 0 is one of them. These are {tuple(fractions)}."
        )
    return 100 * torch.trapezoid(values.double(), steps, dim=-1)


def area_between_curves(highest: Tensor, lowest: Tensor, fractions: Sequence[float]) -> Tensor:
    """Compute the area between curves (..., steps), times 100: the larger, the better.

    It is the area when the lowest scores are deleted first (negative perturbation), less the area
    when the highest are (positive perturbation).
    """
    return area_under_curve(lowest, fractions) - area_under_curve(highest, fractions)


def symmetric_relevance_gain(highest: Tensor, lowest: Tensor, shares: Tensor) -> Tensor:
    r"""Compute the area between curves (..., steps): the larger, the better.

    SRG of Blücher, Vielhaben, Strodthoff (TMLR 2024), :math:`\int_0^1 LIF(x) - MIF(x)\, dx` by
    trapezoids: the mean height of the curve when the units of least influence are deleted first,
    over that when those of most influence are. It is in the unit of the curves, not times 100.

    Args:
        highest: The curve when the highest scores are deleted first (MIF).
        lowest: The curve when the lowest are (LIF).
        shares: (steps,) The share of units that is deleted at each step, from 0 to 1.
    """
    if highest.shape != lowest.shape or highest.shape[-1:] != shares.shape:
        raise WhenceError(
            f"Two curves of {len(shares)} steps are needed, not {tuple(highest.shape)} and "
            f"{tuple(lowest.shape)}."
        )
    if len(shares) < 2 or shares[0] != 0 or shares[-1] != 1 or (shares.diff() < 0).any():
        raise WhenceError("The shares of deleted units have to rise from 0 to 1.")
    between = lowest.double() - highest.double()
    return torch.trapezoid(between, shares.to(between), dim=-1)
