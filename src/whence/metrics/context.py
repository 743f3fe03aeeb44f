"""Measure what an answer of a language model loses without the highest tokens of its context."""

from __future__ import annotations

from torch import Tensor

from whence.errors import WhenceError

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""The fractions of the context's tokens that are removed, in turn; rounded up to whole tokens."""


def compute_drops(full: Tensor, without: Tensor) -> Tensor:
    """Compute by how much log-probabilities fall, in nats: (n, shares), in float64.

    The larger, the better: what was removed carried the answer. Their mean over shares is the
    figure that methods are compared by.

    Args:
        full: (n,), the log-probability of the answer after the whole context.
        without: (n, shares), the same without each share of the tokens.
    """
    if full.dim() != 1 or without.dim() != 2 or len(without) != len(full) or not without.shape[1]:
        raise WhenceError(
            f"Log-probabilities have to be (n,) and (n, shares), not {tuple(full.shape)} and "
            f"{tuple(without.shape)}."
        )
    return full.double()[:, None] - without.double()
