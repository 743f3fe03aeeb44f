"""Compare scores of tokens with cues and passages that an answer is known to come from."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

from whence.errors import WhenceError


class CueFigures(TypedDict):
    """Figures of each text, (n,) in float64; NaN where no token may be, or is, a cue.

    `first` is 1 where a cue has the highest score, `reciprocal_rank` is 1 over the rank of the
    highest cue, and `share` is the cues' part of all positive scores.
    """

    first: Tensor
    reciprocal_rank: Tensor
    share: Tensor


def compare_with_cues(scores: Tensor, cues: Tensor, allowed: Tensor) -> CueFigures:
    """Tell how high the cues are among the tokens that are allowed.

    Ties count against the cues: among equal scores, others come first. So a constant map finds
    nothing. Without any positive score, the share is 0.

    Args:
        scores: (n, tokens).
        cues: (n, tokens), true for the tokens of cues.
        allowed: (n, tokens), true for the tokens that are ranked.
    """
    if not scores.shape == cues.shape == allowed.shape or scores.dim() != 2:
        shapes = [tuple(one.shape) for one in (scores, cues, allowed)]
        raise WhenceError(f"Scores, cues and tokens have to be (n, tokens), not {shapes}.")
    scores = scores.double()
    if scores[allowed].isnan().any():
        raise WhenceError("Some scores are not numbers, so they cannot be ordered.")
    hit, other = cues & allowed, ~cues & allowed
    best = scores.masked_fill(~hit, -torch.inf).amax(1, keepdim=True)
    rank = 1 + (other & (scores >= best)).sum(1).double()
    positive = scores.clamp(min=0)
    parts, wholes = (positive.masked_fill(~one, 0).sum(1) for one in (hit, allowed))
    share = parts / wholes.where(wholes > 0, 1)
    known = hit.any(1)

    def keep_known(values: Tensor) -> Tensor:
        return values.double().masked_fill(~known, torch.nan)

    return {
        "first": keep_known(rank == 1),
        "reciprocal_rank": keep_known(1 / rank),
        "share": keep_known(share),
    }


class PassageFigures(TypedDict):
    """Figures of each text, (n,) in float64: of passages by the sum, and by the mean, of scores."""

    by_sum: Tensor
    by_mean: Tensor
    reciprocal_rank: Tensor


def find_passage(scores: Tensor, passages: Tensor, right: Tensor) -> PassageFigures:
    """Tell whether the right passage has the highest score of all passages of its text.

    `by_sum` and `by_mean` are 1 where it has, and 0 elsewhere; `reciprocal_rank` is 1 over its rank
    by the sum. Ties count against it. Passages without a token take no part.

    Args:
        scores: (n, tokens).
        passages: (n, tokens), the number of each token's passage, from 0; negative for none.
        right: (n,), the number of the passage that holds the answer.
    """
    if scores.shape != passages.shape or scores.dim() != 2 or len(right) != len(scores):
        raise WhenceError(
            f"Scores and passages have to be (n, tokens), with n right ones, not "
            f"{tuple(scores.shape)}, {tuple(passages.shape)} and {tuple(right.shape)}."
        )
    if scores[passages >= 0].isnan().any():
        raise WhenceError("Some scores are not numbers, so they cannot be ordered.")
    count = int(passages.max()) + 1 if passages.numel() else 0
    if count < 1 or (right < 0).any() or (right >= count).any():
        raise WhenceError(f"The right passage has to be one of {count}.")
    places = passages.where(passages >= 0, count)
    sums = scores.new_zeros(len(scores), count + 1, dtype=torch.float64)
    sizes = sums.clone()
    values = scores.double().masked_fill(passages < 0, 0)
    sums = sums.scatter_add_(1, places, values)[:, :count]
    sizes = sizes.scatter_add_(1, places, torch.ones_like(values))[:, :count]
    means = sums / sizes.clamp(min=1)
    ranks = [_rank_right(one.masked_fill(sizes == 0, -torch.inf), right) for one in (sums, means)]
    return {
        "by_sum": (ranks[0] == 1).double(),
        "by_mean": (ranks[1] == 1).double(),
        "reciprocal_rank": 1 / ranks[0],
    }


def _rank_right(values: Tensor, right: Tensor) -> Tensor:
    """The rank (n,) of one of the values (n, passages), from 1, behind others that are equal."""
    own = values.gather(1, right.to(values.device)[:, None])
    return (values >= own).sum(1).double()
