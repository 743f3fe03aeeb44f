"""Measure how much more complex explanations become once a model's weights are random.

After "Sanity Checks Revisited" (Hedström et al., 2024): the efficient form of the test that makes
weights random (`whence.metrics.trust.randomization_cascade`). It compares two models only, the
trained one and one whose weights are all random, and asks of no map that it be unlike another: a
map of a model that has learned nothing is to be more complex.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.errors import WhenceError

BINS = 100
"""Bins of the histogram, as the authors have it."""


def choose_bins(units: int, most: int = BINS) -> int:
    """Choose the bins for so many scores: the square root, rounded up, and no more than `most`.

    With as many bins as scores, each score would have a bin of its own, and every map of a short
    text would be equally complex.
    """
    if units < 1 or most < 1:
        raise WhenceError("A histogram needs a score and a bin at least.")
    return min(most, math.isqrt(units - 1) + 1)


def histogram_entropy(scores: Tensor, bins: int = BINS) -> Tensor:
    """Measure how complex maps (n, ...) are: (n,) in float64, from 0 to log(bins).

    H = -Σ p log p, with p the shares of a map's scores in bins of equal width from its lowest score
    to its highest. A bin has its left edge, the last one both. A map that is the same everywhere
    has 0.
    """
    if scores.dim() < 2 or not scores[0].numel() or bins < 1:
        raise WhenceError(
            f"The entropy needs scores (n, units) and a bin at least, not {tuple(scores.shape)} "
            f"and {bins} bins."
        )
    if not scores.isfinite().all():
        raise WhenceError("Some scores are NaN or infinite, so they fall into no bin.")
    values = scores.detach().double().flatten(1)
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    steps = torch.arange(bins + 1, dtype=values.dtype, device=values.device)
    edges = low + steps * ((high - low) / bins)
    found = (torch.searchsorted(edges, values, right=True) - 1).clamp(0, bins - 1)
    counts = torch.zeros(len(values), bins, dtype=torch.long, device=values.device)
    counts.scatter_add_(1, found, torch.ones_like(found))
    shares = counts.double() / values.shape[1]
    entropy = -torch.xlogy(shares, shares).sum(1)
    # A GPU divides by way of the reciprocal, so that a share of all is not quite 1.
    return torch.where((counts == values.shape[1]).any(1), 0.0, entropy)


def complexity_rise(original: Tensor, randomized: Tensor) -> Tensor:
    """The relative rise of the complexity (n,): (randomized - original) / original.

    It is 0 where the trained model's map is the same everywhere: such a map shows nothing that
    could be lost, and must not win by it.

    Args:
        original: (n,), the complexity of the trained model's maps.
        randomized: (n,), the same with random weights.
    """
    if original.shape != randomized.shape:
        raise WhenceError(
            f"There are {tuple(original.shape)} and {tuple(randomized.shape)} complexities, which "
            f"do not belong together."
        )
    before, after = original.double(), randomized.double()
    return torch.where(before > 0, (after - before) / torch.where(before > 0, before, 1), 0.0)
