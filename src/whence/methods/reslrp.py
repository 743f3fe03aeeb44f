"""ResLRP: AttnLRP with the gamma rule at every skip connection (Fraunhofer HHI, 2026)."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import sum_over_tokens
from whence.rules import RuleSet
from whence.rules.residual import make_reslrp


@register("reslrp")
@dataclass(frozen=True)
class ResLrp(Method):
    r"""AttnLRP, with more relevance to the terms of a skip connection that agree with their sum.

    A skip connection adds a block's input to what its branches make of it,
    :math:`z = z_1 + \dots + z_n`: the residual stream and an attention, say. Terms of opposite
    signs cancel each other, and where little is left of their sum, the epsilon rule of AttnLRP
    hands on large relevances of opposite signs. The gamma rule weighs terms by their sign,

    .. math::
        R_i = \frac{w_i z_i}{\sum_j w_j z_j} R, \qquad
        w_i = \begin{cases} 1 + \gamma & z_i z \ge 0 \\ 1 & \text{else} \end{cases}

    element by element. All other rules are those of ``"attnlrp"``, and biases keep their share. So
    it is a modified gradient as well, :math:`R_i = z_i g_i`, with
    :math:`g_i = w_i \frac{z}{\sum_j w_j z_j} g`, whose quotient is between 0 and
    :math:`1 / (1 + \gamma)`.

    A sum is a skip connection where the recorded graph proves it: one of its terms is, but for
    routing and scaling by constants, what another term is computed from.

    Attributes:
        gamma: How much more terms weigh that agree with their sum; 0 is ``"attnlrp"``.
    """

    needs = ("inputs", "input_gradient")
    citation = "ResLRP: AttnLRP with a gamma rule at skip connections, Fraunhofer HHI 2026"
    cost = "2"
    signed = True

    gamma: float = 1.0

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise WhenceError(f"gamma={self.gamma} must not be negative.")

    @property
    @override
    def gradient_rules(self) -> RuleSet:
        return make_reslrp(float(self.gamma))

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        pairs = zip(evidence.inputs, evidence.input_gradient, strict=True)
        return sum_over_tokens(evidence, [x * gradient for x, gradient in pairs])
