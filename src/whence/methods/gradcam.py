"""Grad-CAM on tokens: features weighted by their mean gradient (Selvaraju et al.; ICCV 2017)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import check_layer
from whence.rules.balanced import Gradients


@register("gradcam")
@dataclass(frozen=True)
class GradCam(Method):
    r"""Features of each token before an attention, weighted by the class logit's mean gradient.

    .. math::
        w_c = \operatorname{mean}_i \frac{\partial y}{\partial f_{ic}}, \qquad
        s_i = \max\Bigl(0, \sum_c w_c f_{ic}\Bigr)

    with y the class logit and :math:`f_{ic}` channel c of token i in the input of the chosen
    attention's values: in a pre-norm Transformer such as ViT, the output of the block's first norm.
    After the last attention only the pooled tokens have a gradient; before it all tokens do. Means
    are over patches, or over the tokens of a text without padding; a class token has no place in
    the image.

    Attributes:
        layer: Which attention; negative numbers count from the last.
        gradients: ``"plain"``, as the authors', ``"balanced"`` or ``"residual"``.
    """

    needs = ("value_input", "value_input_gradient")
    citation = (
        "Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra: Grad-CAM: Visual Explanations from "
        "Deep Networks via Gradient-based Localization, ICCV 2017"
    )
    cost = "2"
    unsteady_types = (torch.float16,)

    layer: int = -1
    gradients: Gradients = "plain"

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        layer = check_layer(self.layer, len(evidence.value_input))
        features, gradient = evidence.value_input[layer], evidence.value_input_gradient[layer]
        # A class token has no place in the image.
        mask = evidence.token_mask & evidence.layout.mark_unit_tokens(features.device)
        mask = mask[..., None]
        count = mask.sum(-2, keepdim=True).clamp(min=1)
        weights = torch.where(mask, gradient, 0).sum(-2, keepdim=True) / count
        return (weights * features).sum(-1).clamp(min=0)
