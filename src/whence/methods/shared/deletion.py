"""How faithful scores are: what becomes of a class when the tokens they rank high are deleted.

A token is deleted by putting 0 in the place of its pixels or of its embedding. Scores that differ
by rounding only, such as those of a map that is the same everywhere, count as equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.shared.maps import content


def area(evidence: Evidence, scores: Tensor, fractions: Sequence[float]) -> Tensor:
    """Area between deleting what scores rank lowest and what they rank highest.

    It is the mean over fractions of the probability without that fraction of tokens which has the
    lowest scores, less the probability without that which has the highest. Tokens of equal scores
    are deleted in reading order, at least one at a time.

    Args:
        evidence: Runs the model again.
        scores: (candidates, classes, batch, tokens).
        fractions: Which parts of the tokens are deleted, each between 0 and 1.

    Returns:
        (candidates, classes, batch).
    """
    allowed = content(evidence, scores.shape[-1])
    scores = _levels(scores, allowed)
    faithful = scores.new_zeros(scores.shape[:-1])
    kept: list[Tensor] = []
    for sample in range(evidence.batch):
        of_classes = zip(scores[:, :, sample].unbind(1), allowed[:, sample], strict=True)
        kept.append(torch.stack([_curves(one, at, fractions) for one, at in of_classes]))
    for sample, chances in enumerate(_probabilities(evidence, [k.flatten(0, -2) for k in kept])):
        for target, chance in enumerate(chances):
            highest, lowest = chance.reshape(kept[sample].shape[:-1])[target].unbind(-1)
            faithful[:, target, sample] = (lowest - highest).mean(-1)
    return faithful


def ranked(evidence: Evidence, scores: Tensor) -> Tensor:
    """Ranked faithful truthfulness (Mylonas, Mollas, Tsoumakas) of scores of one sign.

    It is the sum over tokens of what the probability loses when that token alone is deleted,
    divided by the token's rank: 1 for the highest score. Tokens of equal scores share the last of
    their ranks.

    Args:
        evidence: Runs the model again.
        scores: (candidates, classes, batch, tokens).

    Returns:
        (candidates, classes, batch).
    """
    tokens = scores.shape[-1]
    allowed = content(evidence, tokens)
    scores = _levels(scores, allowed)
    faithful = scores.new_zeros(scores.shape[:-1])
    whole = torch.ones(1, tokens, dtype=torch.bool, device=scores.device)
    one_less = ~torch.eye(tokens, dtype=torch.bool, device=scores.device)
    kept = [torch.cat([whole, one_less[at.any(0)]]) for at in allowed.unbind(1)]
    for sample, chances in enumerate(_probabilities(evidence, kept)):
        for target, chance in enumerate(chances):
            at = allowed[target, sample]
            lost = (chance[0] - chance[1:])[at[allowed[:, sample].any(0)]]
            values = scores[:, target, sample, at].contiguous()
            below = torch.searchsorted(values.sort(-1).values, values)
            faithful[:, target, sample] = (lost / (values.shape[-1] - below)).sum(-1)
    return faithful


def _levels(scores: Tensor, allowed: Tensor) -> Tensor:
    """Scores as whole numbers of steps that rounding does not reach."""
    largest = (scores * allowed).abs().amax(-1, keepdim=True)
    # Half precision has so few steps that most scores would fall into one.
    coarse = torch.finfo(scores.dtype).bits < 32
    step = largest * (1 if coarse else 64) * torch.finfo(scores.dtype).eps
    return (scores / torch.where(step > 0, step, 1)).round()


def _curves(scores: Tensor, allowed: Tensor, fractions: Sequence[float]) -> Tensor:
    """Which tokens are kept, (candidates, fractions, 2, tokens): without the highest, the lowest.

    Args:
        scores: (candidates, tokens).
        allowed: (tokens,), which may be deleted.
        fractions: Which parts of these are deleted.
    """
    kept = torch.ones(
        len(scores), len(fractions), 2, scores.shape[-1], dtype=torch.bool, device=scores.device
    )
    places = allowed.nonzero()[:, 0]
    for direction, descending in enumerate((True, False)):
        order = places[scores[:, places].argsort(dim=-1, descending=descending, stable=True)]
        for number, fraction in enumerate(fractions):
            count = max(1, round(fraction * len(places)))
            kept[:, number, direction].scatter_(1, order[:, :count], False)
    return kept


def _probabilities(evidence: Evidence, kept: Sequence[Tensor]) -> list[Tensor]:
    """Probabilities of the classes, (classes, rows), for each sample's rows of kept tokens.

    Rows of a sample that keep the same tokens are computed once.
    """
    forwards = evidence.forwards
    assert forwards is not None
    if evidence.layout.grid is None and forwards.inputs.shape[1] != kept[0].shape[-1]:
        raise WhenceError(
            f"The model attends to {kept[0].shape[-1]} tokens, but its input has "
            f"{forwards.inputs.shape[1]}: whence cannot tell which to delete."
        )
    found = [torch.unique(rows, dim=0, return_inverse=True) for rows in kept]
    rows = torch.cat([unique for unique, _ in found])
    counts = torch.tensor([len(unique) for unique, _ in found], device=rows.device)
    samples = torch.arange(len(kept), device=rows.device).repeat_interleave(counts)
    chances = []
    for part in forwards.parts(len(rows), "deleting"):
        weights = evidence.to_inputs(rows[part].to(forwards.inputs.dtype))
        changed = forwards.inputs[samples[part]] * weights
        chances.append(evidence.probabilities(forwards(changed, samples[part]), samples[part]))
    by_sample = torch.split(torch.cat(chances, 1), counts.tolist(), 1)
    return [chance[:, at] for chance, (_, at) in zip(by_sample, found, strict=True)]
