"""Grad-CAM on an attention map, as in the baselines of Chefer, Gur, Wolf (CVPR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.maps import lowest_at_pooled, pooled_rows, read_layer
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

    with p the weights of the tokens which the classifier reads. The mean of the gradient is over
    the tokens that are explained: keys that are no prefix tokens, neither padding. (At padded keys
    the gradient is not zero, though the attention is.) A single token that is read in a text gets
    the lowest score of the others. Scores are not scaled; the authors scale each map to 0 ... 1,
    which is 0/0 where no head speaks for the class. Here, that gives zeros.

    Attributes:
        layer: Which layer; below zero, counted from the end.
        gradients: ``"plain"``, as the authors', or ``"balanced"``.
    """

    needs: ClassVar[tuple[str, ...]] = ("attention", "gradient")
    citation: ClassVar[str] = (
        "Selvaraju et al.: Grad-CAM, ICCV 2017; on attention as in Chefer, Gur, Wolf: Transformer "
        "Interpretability Beyond Attention Visualization, CVPR 2021"
    )
    cost: ClassVar[str] = "2"

    layer: int = -1
    gradients: Gradients = "plain"

    @property
    def first_site(self) -> int:  # noqa: D102
        return self.layer

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        layer = read_layer(self.layer, evidence)
        gradient, maps = evidence.gradient[layer], evidence.attention[layer]
        counted = _explained(gradient, evidence)
        total = (gradient * counted).sum((-2, -1), keepdim=True)
        weights = total / counted.sum((-2, -1), keepdim=True).clamp(min=1)
        weighted = (weights * maps).mean(-3).clamp(min=0)
        return lowest_at_pooled(pooled_rows(weighted, evidence), evidence)


def _explained(gradient: Tensor, evidence: Evidence) -> Tensor:
    """(batch, 1, queries, keys): 1 where both are no padding and the key is explained."""
    queries, keys = gradient.shape[-2:]
    real = evidence.token_mask
    counted = torch.ones(len(real), queries, keys, dtype=torch.bool, device=gradient.device)
    if keys == evidence.tokens:
        counted &= real[:, None, :]
        counted[..., : evidence.layout.prefix or 0] = False
    if queries == evidence.tokens:
        counted &= real[:, :, None]
    return counted[:, None].to(gradient.dtype)
