"""Measure fidelity with random removals that a model has been fine-tuned on (F-Fidelity).

After Zheng et al., "F-Fidelity: A Robust Framework for Faithfulness Evaluation of Explainable AI"
(ICLR 2025). Nothing is run here: the caller runs the fine-tuned model without the units that are
drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.errors import WhenceError

ALPHA = 0.5
"""The chance with which each unit of a part is removed, where the part is small enough."""
BETA = 0.1
"""The share of all units that are removed at most, on average; as many as in fine-tuning."""


def removal_chances(
    counts: Tensor, units: Tensor | int, alpha: float = ALPHA, beta: float = BETA
) -> Tensor:
    """The chance with which each unit of a part is removed: min(alpha, beta · units / count).

    So beta of all units are removed on average at most, however large the part is.

    Args:
        counts: (…), how many units the parts have.
        units: How many units the inputs have; one number, or what fits to `counts`.
        alpha: Above 0, and 1 at most.
        beta: Likewise.
    """
    if not (0 < alpha <= 1 and 0 < beta <= 1):
        raise WhenceError(f"alpha and beta are above 0 and 1 at most, not {alpha:g} and {beta:g}.")
    allowed = beta * torch.as_tensor(units, dtype=torch.float64, device=counts.device)
    return (allowed / counts.clamp(min=1)).clamp(max=alpha)


def draw_removed(ranks: Tensor, counts: Tensor, chances: Tensor, noise: Tensor) -> Tensor:
    """Draw the units to remove from the first units of orders: (orders, sizes, draws, units).

    Args:
        ranks: (orders, units), as `whence.metrics.deletion.rank_units` returns them.
        counts: (sizes,) or (orders, sizes): how many of the first units a part has.
        chances: Of the same shape, as `removal_chances` returns them.
        noise: (orders, draws, units), between 0 and 1: a unit of a part is removed where it is
            below the part's chance. The same noise for two orders makes them comparable.
    """
    counts, chances = (one.to(ranks.device).expand(len(ranks), -1) for one in (counts, chances))
    part = ranks[:, None] < counts[..., None]
    low = noise.to(ranks.device, torch.float64)[:, None] < chances[..., None, None]
    return part[:, :, None] & low


def compute_fidelity(clean: Tensor, removed: Tensor) -> Tensor:
    """What is lost by removals, (n, sizes): the clean value less the mean over draws.

    Fid+ is that of removals from the units of the highest scores: high is better. Fid- is that of
    removals from the rest: low is better.

    Args:
        clean: (n,), the value of the whole input: 1 or 0 for right or wrong, or a probability.
        removed: (n, sizes, draws), the same without the removed units.
    """
    if removed.dim() != 3 or clean.shape != removed.shape[:1] or not removed.shape[2]:
        raise WhenceError(
            f"Values (n,) and (n, sizes, draws) have to fit together, not {tuple(clean.shape)} and "
            f"{tuple(removed.shape)}."
        )
    return clean.double()[:, None] - removed.double().mean(2)
