"""Transformer Interpretability Beyond Attention Visualization (Chefer, Gur, Wolf; CVPR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whence.evidence import Evidence, MapReadings
from whence.methods.registry import Method, register
from whence.methods.shared.maps import carried, check_layer, lowest_at_pooled, one_sequence
from whence.rules.balanced import Gradients


@register("tiba", aliases=("transformer_attribution",))
@dataclass(frozen=True)
class Tiba(Method):
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
        gradients: ``"plain"``, as the authors', or ``"balanced"``.
    """

    needs: ClassVar[tuple[str, ...]] = ("gradient", "relevance")
    citation: ClassVar[str] = (
        "Chefer, Gur, Wolf: Transformer Interpretability Beyond Attention Visualization, CVPR 2021"
    )
    cost: ClassVar[str] = "5"
    streamed: ClassVar[bool] = True

    start_layer: int = 0
    normalize_rows: bool = False
    gradients: Gradients = "plain"

    @property
    def first_site(self) -> int:  # noqa: D102
        return self.start_layer

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        one_sequence(evidence)
        kept, moved = evidence.pooling, torch.zeros_like(evidence.pooling)
        check_layer(self.start_layer, evidence)
        for added in evidence.fuse_heads(_weighted, first=self.start_layer):
            kept, moved = carried(kept, moved, added, self.normalize_rows)
        return lowest_at_pooled(moved, evidence)


def _weighted(layer: MapReadings) -> Tensor:
    return (layer.gradient * layer.relevance).clamp_(min=0)
