"""TIBA: gradient-weighted relevance of attention, rolled out (Chefer, Gur, Wolf; CVPR 2021)."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.evidence import Evidence, MapReadings
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    finish_rollout,
    require_known_layers,
    roll_out_layers,
)
from whence.rules.balanced import Gradients


@register("tiba", aliases=("transformer_attribution",))
@dataclass(frozen=True)
class Tiba(Method):
    r"""Gradient-weighted relevance of every attention map, multiplied over layers.

    With :math:`\nabla A^{(b)}` the gradient of the class logit at the attention map of layer b and
    :math:`R^{(b)}` the relevance of the class there,

    .. math::
        \bar A^{(b)} = I + \mathbb{E}_h \max(\nabla A^{(b)} \odot R^{(b)}, 0), \qquad
        C = \bar A^{(B)} \cdots \bar A^{(1)},

    and the explanation is the row of C of the pooled token. Only that row is computed, from the
    last layer to the first. The product of identities alone, the skip connections' share, is what
    pooled tokens keep of themselves. It is left out where all tokens of the input are pooled alike
    or none is, and is part of the score where a pooled token is a part of the input, such as the
    last one of a language model. A single pooled token that is no part of the input, such as
    ``[CLS]``, gets the lowest score of the others, as the authors do for BERT: its being pooled
    says nothing about the input.

    Attributes:
        start_layer: The first layer that counts; earlier ones are left out.
        normalize_rows: Divide the rows of each :math:`\bar A` by their sum, as the authors do for
            BERT.
        gradients: ``"plain"``, as the authors', ``"balanced"`` or ``"residual"``.
    """

    needs = ("gradient", "relevance")
    citation = (
        "Chefer, Gur, Wolf: Transformer Interpretability Beyond Attention Visualization, CVPR 2021"
    )
    cost = "5"
    streamed = True

    start_layer: int = 0
    normalize_rows: bool = False
    gradients: Gradients = "plain"

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        require_known_layers(evidence, self.start_layer)
        maps = evidence.fuse_heads(_weigh, first=self.start_layer)
        kept, moved = roll_out_layers(evidence, maps, self.normalize_rows)
        return finish_rollout(kept, moved, evidence)


def _weigh(readings: MapReadings) -> Tensor:
    return (readings.gradient * readings.relevance).clamp_(min=0)
