"""The rule set ``attnlrp`` (Achtibat et al.; ICML 2024): balanced gradients that enter the softmax.

Products of two factors that depend on the input, attention among them, give half to each.
"""

from __future__ import annotations

from whence.rules.balanced import BALANCED, halve_gradient, pass_nonlinear
from whence.rules.ruleset import RuleSet, register

ATTNLRP = register(
    RuleSet(
        "attnlrp",
        {
            **BALANCED.rules,
            "matmul": halve_gradient,
            "pass": pass_nonlinear(lambda op, gradient: op.vjp(gradient)),
        },
        supports_partial=True,
        is_gradient=True,
    )
)
