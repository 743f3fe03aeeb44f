"""The rule set ``attnlrp`` (Achtibat et al.; ICML 2024): balanced gradients that enter the softmax.

Products of two factors that depend on the input, attention among them, give half to each. What is
divided by its own sum is taken as a softmax is: the weights of chosen experts are one.
"""

from __future__ import annotations

from torch import Tensor

from whence.rules.balanced import BALANCED, halve_gradient, pass_nonlinear, pass_to_numerator
from whence.rules.ruleset import RuleSet, register
from whence.tracing.ops.base import Values
from whence.tracing.ops.function import Function


def _pass_quotient(op: Function, gradient: Tensor) -> Values:
    """The gradient of x / sum(x), which is that of a softmax; any other denominator is held."""
    return op.vjp(gradient) if op.divides_by_own_sum else pass_to_numerator(op, gradient)


ATTNLRP = register(
    RuleSet(
        "attnlrp",
        {
            **BALANCED.rules,
            "matmul": halve_gradient,
            "quotient": _pass_quotient,
            "pass": pass_nonlinear(lambda op, gradient: op.vjp(gradient)),
        },
        supports_partial=True,
        is_gradient=True,
        reads_linear=False,
        attention_factors=(0.25, 0.25, 0.5),
    )
)
