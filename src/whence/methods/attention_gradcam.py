"""Grad-CAM on one attention map, a baseline of Chefer, Gur, Wolf (CVPR 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    check_readable_layer,
    mark_unpadded_pairs,
    refuse_flow,
    score_pooled_rows,
)
from whence.rules.balanced import Gradients


@register("attention_gradcam")
@dataclass(frozen=True)
class AttentionGradCam(Method):
    r"""Grad-CAM on one attention map: heads weighted by the mean of their gradient.

    With :math:`A_h` the attention of head h, and :math:`\nabla A_h` the gradient of the class logit
    there,

    .. math::
        w_h = \mathbb{E}_{ij} (\nabla A_h)_{ij}, \qquad
        s = p^\top \max(\mathbb{E}_h \, w_h A_h, 0),

    with p the weights of the pooled tokens. The mean of the gradient is over the explained tokens:
    keys without prefix tokens and padding. (At padded keys the gradient is not zero, though the
    attention is.) In a text, a single pooled token that
    is no part of the input gets the lowest score of the others. Scores are
    not scaled; the authors scale each map to 0 ... 1, which is 0/0 where no head supports the
    class. Here, that gives zeros.

    Attributes:
        layer: Which layer; negative numbers count from the last.
        gradients: ``"plain"``, as the authors', ``"balanced"`` or ``"residual"``.
    """

    needs = ("attention", "gradient")
    citation = (
        "Selvaraju et al.: Grad-CAM, ICCV 2017; on attention as in Chefer, Gur, Wolf: Transformer "
        "Interpretability Beyond Attention Visualization, CVPR 2021"
    )
    cost = "2"
    unsteady_types = (torch.bfloat16,)

    layer: int = -1
    gradients: Gradients = "plain"

    @property
    @override
    def first_layer(self) -> int:
        return self.layer

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        if any(one.merged or one.sites[0].problem for one in evidence.layers):
            refuse_flow(evidence)  # windows and merged tokens; a layer of several may be read
        layer = check_readable_layer(self.layer, evidence)
        gradient, maps = evidence.gradient[layer], evidence.attention[layer]
        mask = mark_unpadded_pairs(maps[:, 0], evidence)
        if maps.shape[-1] == evidence.tokens:
            mask &= evidence.layout.mark_unit_tokens(maps.device)[:, None]
        mask = mask[:, None].to(gradient.dtype)
        total = (gradient * mask).sum((-2, -1), keepdim=True)
        weights = total / mask.sum((-2, -1), keepdim=True).clamp(min=1)
        weighted = (weights * maps).mean(-3).clamp(min=0)
        return score_pooled_rows(weighted, evidence)
