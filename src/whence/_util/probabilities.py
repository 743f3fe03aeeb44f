"""Probabilities from logits, in one place."""

from __future__ import annotations

from torch import Tensor


def to_probabilities(logits: Tensor, multi_label: bool = False) -> Tensor:
    """Probabilities of classes, (..., classes), from their logits.

    Args:
        logits: (..., classes).
        multi_label: Whether several classes can hold at once, each with a probability of its own. A
            single logit that is no such class is a quantity, not a probability, and stays as it is.
    """
    if multi_label:
        return logits.sigmoid()
    return logits.softmax(-1) if logits.shape[-1] > 1 else logits
