r"""The rule sets ``residual`` and ``reslrp``: the gamma rule at every skip connection.

They are ``balanced`` and ``attnlrp``, but for the sums of skip connections and their branches,
z = z_1 + … + z_n. There a term whose sign agrees with that of the sum weighs more:

.. math::
    R_i = \frac{w_i z_i}{\sum_j w_j z_j} R, \qquad
    w_i = \begin{cases} 1 + \gamma & z_i z \ge 0 \\ 1 & \text{else} \end{cases}

As a gradient, R = z g, that is :math:`g_i = w_i \frac{z}{\sum_j w_j z_j} g`. With
:math:`a = \sum_j |z_j|` the quotient is
:math:`|z| / \bigl((1 + \gamma / 2) |z| + \gamma a / 2\bigr)`: it lies between 0 and
1 / (1 + gamma), and its denominator is 0 only where all terms are. There gradients pass as they
are.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from whence.rules.attnlrp import ATTNLRP
from whence.rules.balanced import BALANCED, pass_gradient, pass_to_summed
from whence.rules.ruleset import Rule, RuleSet, batched_over_classes, register
from whence.tracing.ops.base import Add, Function, Operation, Values


def _share_addition(gamma: float) -> Rule:
    """The gamma rule for sums of two terms that depend on the input, if they are skip ones."""

    @batched_over_classes
    def rule(op: Add, gradient: Tensor) -> Values:
        if op.skip is None:
            return pass_gradient(op, gradient)
        gradient, signs = _scale_to_terms(op, gradient, gamma)
        to_a, to_b = (
            gradient if inner is not None else gradient * _weigh(term, signs, gamma)
            for term, inner in zip((op.a, op.b), op.skip.partial, strict=True)
        )
        return op.sum_to_shapes(to_a, to_b if op.scale == 1 else to_b * op.scale)

    return rule


def _share_stack(gamma: float) -> Rule:
    """The gamma rule for sums of a stack of terms, if they are those of a skip connection."""

    @batched_over_classes
    def rule(op: Function, gradient: Tensor) -> Values:
        if op.skip is None:
            return pass_to_summed(op, gradient)
        gradient, signs = _scale_to_terms(op, gradient, gamma)
        terms = op.inputs[0].detach()
        (of_terms,) = op.vjp(signs.to(terms.dtype))
        return (op.vjp(gradient)[0] * _weigh(terms, of_terms, gamma),)

    return rule


def _scale_to_terms(op: Operation, gradient: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """The gradient of terms before they are weighed, and the signs of their sum."""
    if op.skip is None:
        raise TypeError("The operation adds up no skip connection.")
    shared = op.skip.shared
    if op.skip.is_last:
        magnitudes = _sum_magnitudes(op)
        size = op.output.abs()
        # As good as zero, so that the quotient is 1 / (1 + gamma) where all terms are zero.
        tiny = torch.finfo(size.dtype).tiny
        denominator = size * (1 + gamma / 2) + magnitudes * (gamma / 2) + tiny * (1 + gamma)
        gradient = gradient * ((size + tiny) / denominator)
        shared.signs = op.output.sign().to(torch.int8)
    if shared.signs is None:
        raise RuntimeError("A partial sum was passed before its whole.")
    return gradient, shared.signs


def _sum_magnitudes(op: Operation) -> Tensor:
    """The sum of the absolute values of all terms, those of partial sums included."""
    partial = () if op.skip is None else op.skip.partial
    inner = [None if one is None else _sum_magnitudes(one) for one in partial]
    op = op.fetch()  # partial sums may be in another segment, which was filled instead
    if isinstance(op, Function):
        return op.function(op.inputs[0].detach().abs())
    if not isinstance(op, Add):
        raise TypeError(f"{op.name} adds no terms.")
    terms = zip((op.a, op.b), inner, strict=True)
    of_a, of_b = (term.abs() if known is None else known for term, known in terms)
    return of_a + of_b


def _weigh(terms: Tensor, signs: Tensor, gamma: float) -> Tensor:
    """The weights of terms: more for those that do not have the opposite sign of their sum."""
    return torch.where(terms.sign() * signs >= 0, 1 + gamma, 1.0).to(terms.dtype)


def _add_gamma_rule(rules: RuleSet, name: str, gamma: float) -> RuleSet:
    """A set of rules for gradients, with the gamma rule at skip connections."""
    added = {"add": _share_addition(gamma), "sum": _share_stack(gamma)}
    return RuleSet(
        name,
        {**rules.rules, **added},
        supports_partial=rules.supports_partial,
        is_gradient=True,
        needs_skips=True,
    )


@cache
def make_reslrp(gamma: float) -> RuleSet:
    """The rules of AttnLRP, with the gamma rule at skip connections."""
    return _add_gamma_rule(ATTNLRP, "reslrp", gamma)


RESIDUAL = register(_add_gamma_rule(BALANCED, "residual", 1.0))
RESLRP = register(make_reslrp(1.0))
