"""AttnLRP: relevance through attention as a modified gradient (Achtibat et al., ICML 2024)."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import sum_over_tokens


@register("attnlrp")
@dataclass(frozen=True)
class AttnLrp(Method):
    r"""Attention-aware relevance: attention's products split in half, its softmax expanded.

    The rules of AttnLRP, relevance going from the output y of an operation to its input x:

    .. math::
        \text{linear:}\quad & R_j = \sum_i \frac{x_j w_{ji}}{y_i + \varepsilon} R_i \\
        \text{matmul } C = AB:\quad & R_{A} = A \odot \Big(\frac{R}{2C} B^\top\Big),\quad
            R_{B} = B \odot \Big(A^\top \frac{R}{2C}\Big) \\
        \text{softmax } y = s(x):\quad & R_i = x_i \big(R_i - y_i \textstyle\sum_j R_j\big) \\
        \text{activations, norms:}\quad & R = R

    As each of them is x times a factor, they are computed as one modified gradient,
    :math:`R = x \odot g`, without a division by y, and so with :math:`\varepsilon` at 0: linear
    maps as they are, products of two tensors that depend on the input by half, activations by
    f(x)/x, norms with their standard deviation as a constant. The authors' own library does the
    same. Biases keep their share of the relevance.
    """

    needs = ("inputs", "input_gradient")
    citation = (
        "Achtibat et al.: AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for "
        "Transformers, ICML 2024"
    )
    cost = "2"
    signed = True

    gradients = "attnlrp"

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        pairs = zip(evidence.inputs, evidence.input_gradient, strict=True)
        return sum_over_tokens(evidence, [x * gradient for x, gradient in pairs])
