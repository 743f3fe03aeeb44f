"""AttnLRP (Achtibat et al., ICML 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import summed


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

    As every one of them is x times something that goes down, they are computed as one reading of
    gradients, :math:`R = x \odot g`, without a division by y, and so with :math:`\varepsilon` at
    0: linear maps as they are, products of two tensors that depend on the input by half,
    activations by f(x)/x, norms with their spread as a constant. This is how the authors' own
    library does it. Biases take their part of the relevance.
    """

    needs: ClassVar[tuple[str, ...]] = ("inputs", "input_gradient")
    citation: ClassVar[str] = (
        "Achtibat et al.: AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for "
        "Transformers, ICML 2024"
    )
    cost: ClassVar[str] = "2"
    signed: ClassVar[bool] = True

    gradients: ClassVar[str] = "attnlrp"

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        return summed(evidence, evidence.inputs * evidence.input_gradient)
