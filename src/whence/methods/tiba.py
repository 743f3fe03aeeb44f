"""Transformer Interpretability Beyond Attention Visualization (Chefer, Gur, Wolf; CVPR 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import register


@register("tiba", aliases=("transformer_attribution",))
@dataclass(frozen=True)
class Tiba:
    r"""Gradient-weighted relevance of every attention map, joined over layers.

    With :math:`\nabla A^{(b)}` the gradient of the class logit at the attention map of layer b and
    :math:`R^{(b)}` the relevance of the class there,

    .. math::
        \bar A^{(b)} = I + \mathbb{E}_h \max(\nabla A^{(b)} \odot R^{(b)}, 0), \qquad
        C = \bar A^{(B)} \cdots \bar A^{(1)},

    and the explanation is the row of C that belongs to the token which the classifier reads. Only
    that row is computed: it is carried down from the last layer to the first. What the identities
    alone hand to the tokens that are read is left out, and a single such token gets the lowest
    score of the others, as the authors do for BERT: that it is read says nothing about the input.

    Attributes:
        start_layer: The first layer that takes part; earlier ones are left out.
        normalize_rows: Divide the rows of each :math:`\bar A` by their sum, as the authors do for
            BERT.
    """

    needs: ClassVar[tuple[str, ...]] = ("gradient", "relevance")

    start_layer: int = 0
    normalize_rows: bool = False

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        layers = len(evidence.gradient)
        if not 0 <= self.start_layer < layers:
            raise WhenceError(
                f"start_layer={self.start_layer} does not exist: the model has {layers} attention "
                f"layers, 0 to {layers - 1}."
            )
        kept, moved = evidence.pooling, torch.zeros_like(evidence.pooling)
        for layer in range(layers - 1, self.start_layer - 1, -1):
            weighted = evidence.gradient[layer] * evidence.relevance[layer]
            added = weighted.clamp_(min=0).mean(-3)
            kept, moved = carried(kept, moved, added, self.normalize_rows)
        return lowest_at_pooled(moved, evidence)


def carried(
    kept: Tensor, moved: Tensor, added: Tensor, normalize_rows: bool = False
) -> tuple[Tensor, Tensor]:
    """A row vector times (I + added), in two parts that add up to it.

    The first part is what identities alone carry on: it says which tokens are read, not where in
    the input their content came from. The other is small beside it, and precise when kept apart.

    Args:
        kept: (..., tokens), the part that only identities carried so far.
        moved: (..., tokens), the rest.
        added: (..., tokens, tokens). Where queries are not the keys, as in pooling by attention,
            there is no skip connection, and no identity is added.
        normalize_rows: Whether to divide the rows of (I + added) by their sum first.
    """
    queries, keys = added.shape[-2:]
    if kept.shape[-1] != queries:
        raise WhenceError(
            f"The attention maps do not follow on each other: one has {queries} queries, the next "
            f"reads {kept.shape[-1]} tokens. Models with windows, merged tokens or cross-attention "
            f"cannot be explained by this method."
        )
    identity = 1 if queries == keys else 0
    if normalize_rows:
        sums = identity + added.sum(-1)
        kept, moved = kept / sums, moved / sums
    step = ((kept + moved)[..., None, :] @ added)[..., 0, :]
    return (kept, moved + step) if identity else (torch.zeros_like(step), step)


def lowest_at_pooled(scores: Tensor, evidence: Evidence) -> Tensor:
    """Give the token that is read, if it is a single one, the lowest score among real tokens."""
    if scores.shape != evidence.pooling.shape:
        return scores
    real = scores
    if evidence.padding is not None and evidence.padding.shape == scores.shape[1:]:
        real = scores.masked_fill(evidence.padding, math.inf)
    pooled = evidence.pooling == 1
    lowest = real.masked_fill(pooled, math.inf).amin(-1, keepdim=True)
    return torch.where(pooled & lowest.isfinite(), lowest, scores)
