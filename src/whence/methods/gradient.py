"""The magnitude of the gradient at the input (Simonyan, Vedaldi, Zisserman; 2014)."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import measure_magnitudes
from whence.rules.balanced import Gradients


@register("gradient", aliases=("saliency",))
@dataclass(frozen=True)
class Gradient(Method):
    r"""How strongly the class logit reacts to a small change of each patch or token.

    With :math:`g` the gradient of the class logit at the pixels, or at the token embeddings,

    .. math::
        s_{\text{patch}} = \operatorname{mean}_{p \in \text{patch}} \max_{c} |g_{c,p}|, \qquad
        s_{\text{token}} = \lVert g_{\text{token}} \rVert_2

    where c runs over channels and p over the patch's pixels. The paper has a score for each pixel;
    the mean over a patch is ours, as is the norm for text.

    Attributes:
        gradients: ``"plain"``, as the authors', ``"balanced"`` or ``"residual"``.
    """

    needs = ("input_gradient",)
    citation = (
        "Simonyan, Vedaldi, Zisserman: Deep Inside Convolutional Networks: Visualising Image "
        "Classification Models and Saliency Maps, ICLR 2014 workshop"
    )
    cost = "2"

    gradients: Gradients = "plain"

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        return measure_magnitudes(evidence, evidence.input_gradient)
