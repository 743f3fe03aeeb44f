"""Rate scores by how faithful they are, by deleting the tokens that they rank high.

A token is deleted by setting its pixels or its embedding to 0. Scores that differ by rounding only,
such as those of a map that is the same everywhere, count as equal.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.shared.inputs import units_to_inputs
from whence.metrics.deletion import count_units, delete_in_order, rank_units, run_without


def rate_by_area(evidence: Evidence, scores: Tensor, fractions: Sequence[float]) -> Tensor:
    """Compute the area between deleting the tokens of lowest and of highest scores.

    It is the mean over fractions of the probability without that fraction of tokens which has the
    lowest scores, less the probability without that which has the highest. Tokens of equal scores
    are deleted in reading order, at least one at a time. Scores, (candidates, classes, batch,
    tokens), become ratings, (candidates, classes, batch).
    """
    shape, tokens = scores.shape[:-1], scores.shape[-1]
    allowed = evidence.input_tokens.expand(len(evidence.pooling), -1, -1)
    maps = _round_scores(scores, allowed).flatten(0, -2)
    allowed = allowed.expand(*shape, tokens).flatten(0, -2)
    classes, samples = (
        torch.arange(size, device=scores.device).view(view).expand(shape).flatten()
        for size, view in ((shape[1], (1, -1, 1)), (shape[2], (1, 1, -1)))
    )
    counts = count_units(allowed.sum(1), fractions, "nearest")
    orders = torch.cat([rank_units(maps, order, allowed) for order in ("highest", "lowest")])
    run = _TokenRunner(evidence, tokens)
    chances = delete_in_order(orders, counts.repeat(2, 1), run, samples.repeat(2))
    chances = chances.gather(2, classes.repeat(2)[:, None, None].expand(*chances.shape[:2], 1))
    highest, lowest = chances.reshape(2, *shape, -1).unbind(0)
    return (lowest - highest).mean(-1)


def rate_by_rank(evidence: Evidence, scores: Tensor) -> Tensor:
    """Compute the ranked faithful truthfulness (Mylonas, Mollas, Tsoumakas) of scores of one sign.

    It is the sum over tokens of the probability that is lost when that token alone is deleted,
    divided by the token's rank: 1 for the highest score. Tokens of equal scores share the last of
    their ranks. Shapes are those of `rate_by_area`.
    """
    tokens = scores.shape[-1]
    allowed = evidence.input_tokens.expand(len(evidence.pooling), -1, -1)
    scores = _round_scores(scores, allowed)
    ratings = scores.new_zeros(scores.shape[:-1])
    nothing = torch.zeros(1, tokens, dtype=torch.bool, device=scores.device)
    one_token = torch.eye(tokens, dtype=torch.bool, device=scores.device)
    deleted = [torch.cat([nothing, one_token[of.any(0)]]) for of in allowed.unbind(1)]
    counts = [len(rows) for rows in deleted]
    samples = [sample for sample, count in enumerate(counts) for _ in range(count)]
    rows = torch.tensor(samples, device=scores.device)
    chances = run_without(torch.cat(deleted), _TokenRunner(evidence, tokens), rows)
    for sample, of_sample in enumerate(torch.split(chances, counts)):
        for target, chance in enumerate(of_sample.unbind(1)):
            at = allowed[target, sample]
            lost = (chance[0] - chance[1:])[at[allowed[:, sample].any(0)]]
            values = scores[:, target, sample, at].contiguous()
            below = torch.searchsorted(values.sort(-1).values, values)
            ratings[:, target, sample] = (lost / (values.shape[-1] - below)).sum(-1)
    return ratings


class _TokenRunner:
    """Runs the model on inputs some of whose tokens are set to 0."""

    def __init__(self, evidence: Evidence, tokens: int) -> None:
        if tokens != evidence.tokens:
            raise WhenceError(
                f"Scores are of {tokens} tokens, but {evidence.tokens} stand for parts of the "
                f"input: whence cannot tell which to delete."
            )
        self.evidence, self.forwards = evidence, evidence.forwards

    def __call__(self, deleted: Tensor, samples: Tensor) -> Tensor:
        """Compute the probabilities of the explained classes, (rows, classes)."""
        chances = []
        for chunk in self.forwards.chunks(len(deleted), "deleting"):
            rows = samples[chunk]
            gone = deleted[chunk].to(self.evidence.logits.dtype)
            kept = 1 - self.evidence.layout.to_units(gone, rows)
            factors = units_to_inputs(self.evidence, kept, rows)
            pairs = zip(self.forwards.inputs, factors, strict=True)
            logits = self.forwards([x[rows] * factor for x, factor in pairs], rows)
            chances.append(self.evidence.targets.probabilities(logits, rows))
        return torch.cat(chances, 1).T


def _round_scores(scores: Tensor, allowed: Tensor) -> Tensor:
    """Round scores to whole numbers of steps that rounding errors do not reach."""
    largest = (scores * allowed).abs().amax(-1, keepdim=True)
    # Half precision has so few steps that most scores would fall into one.
    coarse = torch.finfo(scores.dtype).bits < 32
    step = largest * (1 if coarse else 64) * torch.finfo(scores.dtype).eps
    return (scores / torch.where(step > 0, step, 1)).round()
