"""Input times gradient (Shrikumar, Greenside, Shcherbina, Kundaje; 2016)."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import sum_over_tokens
from whence.rules.balanced import Gradients


@register("input_x_gradient")
@dataclass(frozen=True)
class InputXGradient(Method):
    r"""The input times the gradient of the class logit, summed over each patch or token.

    With x the pixels, or the token embeddings, and :math:`g` the gradient of the class logit there,

    .. math:: s_i = \sum_{k \in i} x_k \, g_k

    where k runs over channels and pixels of patch i, or the width of token i's embedding. A linear
    logit would lose this much at a zero input.

    Attributes:
        gradients: ``"plain"``, as the authors', ``"balanced"`` or ``"residual"``.
    """

    needs = ("inputs", "input_gradient")
    citation = (
        "Shrikumar, Greenside, Shcherbina, Kundaje: Not Just a Black Box: Learning Important "
        "Features Through Propagating Activation Differences, arXiv 2016"
    )
    cost = "2"
    signed = True

    gradients: Gradients = "plain"

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        pairs = zip(evidence.inputs, evidence.input_gradient, strict=True)
        return sum_over_tokens(evidence, [x * gradient for x, gradient in pairs])
