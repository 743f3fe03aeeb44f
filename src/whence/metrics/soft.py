"""Judge scores by how much of each word's embedding is kept (Zhao and Aletras, ACL 2023)."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

from whence.errors import WhenceError


class SoftFigures(TypedDict):
    """Figures of each text, (n,) in float64 between 0 and 1: the higher, the better."""

    soft_sufficiency: Tensor
    soft_comprehensiveness: Tensor


def scale_to_chances(scores: Tensor, lengths: Tensor) -> Tensor:
    """Scale the first `lengths` (n,) of scores (n, units) to 0 … 1 by their minimum and maximum.

    Scores that are all the same say nothing, and become 0; so does what stands beyond the length.
    """
    exists = (
        torch.arange(scores.shape[1], device=scores.device) < lengths.to(scores.device)[:, None]
    )
    if scores[exists].isnan().any():
        raise WhenceError("Some scores are not numbers, so they cannot be scaled.")
    scores = scores.double()
    low = scores.masked_fill(~exists, torch.inf).amin(1, keepdim=True)
    span = scores.masked_fill(~exists, -torch.inf).amax(1, keepdim=True) - low
    scaled = (scores - low) / span.where(span > 0, 1)
    return scaled.masked_fill(~exists, 0)


def compute_soft_figures(full: Tensor, kept: Tensor, dropped: Tensor, empty: Tensor) -> SoftFigures:
    r"""Compute normalised soft sufficiency and comprehensiveness.

    With :math:`S(p') = 1 - \max(0, p - p')` for the probability :math:`p` of the explained class,
    sufficiency is :math:`(\bar S - S(p_0)) / (1 - S(p_0))` and comprehensiveness
    :math:`\overline{\max(0, p - p')} / (1 - S(p_0))`, cut to 0 … 1; means are over draws. Where the
    empty text loses nothing there is nothing to divide by, and both are 0.

    Args:
        full: (n,), the probability of the class for the whole text.
        kept: (n, draws), the same where each number of a word's embedding is kept with the word's
            scaled score as its chance.
        dropped: (n, draws), the same where it is dropped with that chance.
        empty: (n,), the same where all embeddings are 0.
    """
    if not full.shape == empty.shape == kept.shape[:1] == dropped.shape[:1] or kept.dim() != 2:
        shapes = [tuple(one.shape) for one in (full, kept, dropped, empty)]
        raise WhenceError(f"Probabilities have to be (n,), and of draws (n, draws), not {shapes}.")
    full, kept, dropped, empty = (one.double() for one in (full, kept, dropped, empty))
    largest = (full - empty).clamp(min=0)
    divisor = largest.where(largest > 0, 1)
    lost, gone = ((full[:, None] - one).clamp(min=0).mean(1) for one in (kept, dropped))
    has_any = largest > 0
    return {
        "soft_sufficiency": ((largest - lost) / divisor).clamp(0, 1) * has_any,
        "soft_comprehensiveness": (gone / divisor).clamp(0, 1) * has_any,
    }
