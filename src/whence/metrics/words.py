"""Sum scores of tokens to scores of words, and rank words of texts of different lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.metrics.deletion import Order, rank_units


def sum_over_words(scores: Tensor, words: Tensor, count: int) -> Tensor:
    """Sum scores (n, tokens) over the tokens of each word: (n, count), in float64.

    Args:
        scores: Of tokens.
        words: (n, tokens), the index of each token's word; negative for tokens of none.
        count: How many words the longest text has; words without a token have 0.
    """
    if scores.shape != words.shape or (words >= count).any():
        raise WhenceError(
            f"Scores and words have to be (n, tokens) with words below {count}, not "
            f"{tuple(scores.shape)} and {tuple(words.shape)}."
        )
    sums = torch.zeros(len(scores), count + 1, dtype=torch.float64, device=scores.device)
    places = words.to(scores.device)
    return sums.scatter_add_(1, places.where(places >= 0, count), scores.double())[:, :count]


def rank_words(
    scores: Tensor, lengths: Tensor, order: Order, allowed: Tensor | None = None
) -> Tensor:
    """Rank the first `lengths` (n,) of the scores (n, units) as `rank_units` does.

    What stands beyond a text's length has rank -1: it is deleted at each step, so that rows of like
    length are run together. Units that are not `allowed` are never deleted.
    """
    exists = (
        torch.arange(scores.shape[1], device=scores.device) < lengths.to(scores.device)[:, None]
    )
    allowed = exists if allowed is None else exists & allowed.to(scores.device)
    return rank_units(scores, order, allowed).masked_fill_(~exists, -1)
