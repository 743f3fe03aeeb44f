"""Grad-CAM (Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra; ICCV 2017) on tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.rules.balanced import Gradients


@register("gradcam")
@dataclass(frozen=True)
class GradCam(Method):
    r"""Features of each token before an attention, weighted by the class logit's mean gradient.

    .. math::
        w_c = \operatorname{mean}_i \frac{\partial y}{\partial f_{ic}}, \qquad
        s_i = \max\Bigl(0, \sum_c w_c f_{ic}\Bigr)

    with y the class logit and :math:`f_{ic}` channel c of token i where the values of the chosen
    attention are computed from: in a pre-norm Transformer such as ViT, the output of the block's
    first norm. Behind the last attention only the tokens that the classifier reads have a gradient;
    there all of them do. Means are over patches, or over the real tokens of a text: a class token
    stands nowhere on the image, and padding is nothing.

    Attributes:
        layer: Which attention, counted from the input, or from the end if negative.
        gradients: ``"plain"``, as the authors', or ``"balanced"``.
    """

    needs: ClassVar[tuple[str, ...]] = ("value_input", "value_input_gradient")
    citation: ClassVar[str] = (
        "Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra: Grad-CAM: Visual Explanations from "
        "Deep Networks via Gradient-based Localization, ICCV 2017"
    )
    cost: ClassVar[str] = "2"
    class_specific: ClassVar[bool] = True

    layer: int = -1
    gradients: Gradients = "plain"

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        layers = len(evidence.value_input)
        if not -layers <= self.layer < layers:
            raise WhenceError(
                f"layer={self.layer} does not exist: the model has {layers} attention layers, "
                f"0 to {layers - 1}, or -1 to -{layers} from the end."
            )
        features = evidence.value_input[self.layer]
        gradient = evidence.value_input_gradient[self.layer]
        counted = _counted(evidence, features)[..., None]
        count = counted.sum(-2, keepdim=True).clamp(min=1)
        weights = torch.where(counted, gradient, 0).sum(-2, keepdim=True) / count
        return (weights * features).sum(-1).clamp(min=0)


def _counted(evidence: Evidence, features: Tensor) -> Tensor:
    """(batch, tokens), true at patches, or at the real tokens of a text."""
    counted = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    if evidence.padding is not None and evidence.padding.shape == counted.shape:
        counted &= ~evidence.padding
    counted[:, : evidence.layout.prefix or 0] = False
    return counted
