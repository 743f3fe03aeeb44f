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
from whence.tracing.ops.base import Operation, Values
from whence.tracing.ops.function import Function
from whence.tracing.ops.sums import Add, SkipAddition


def _share_addition(gamma: float) -> Rule:
    """The gamma rule for sums of two tensors, if they are those of a skip connection."""

    @batched_over_classes
    def rule(op: Add, gradient: Tensor) -> Values:
        if op.skip is None:
            return pass_gradient(op, gradient)
        gradient, agree = _scale_to_terms(op, op.skip, gradient, gamma)
        to_a, to_b = (
            gradient * _weigh(agree[one], gamma, gradient) if isinstance(one, int) else gradient
            for one in op.skip.summands
        )
        return op.sum_to_shapes(to_a, to_b if op.scale == 1 else to_b * op.scale)

    return rule


def _share_stack(gamma: float) -> Rule:
    """The gamma rule for sums of a stack of tensors, if they are those of a skip connection."""

    @batched_over_classes
    def rule(op: Function, gradient: Tensor) -> Values:
        if op.skip is None or op.skip.stack_dim is None:
            return pass_to_summed(op, gradient)
        gradient, agree = _scale_to_terms(op, op.skip, gradient, gamma)
        weights = [_weigh(agree[one], gamma, gradient) for one in _get_numbers(op.skip)]
        return (torch.stack([gradient * one for one in weights], op.skip.stack_dim),)

    return rule


def _get_numbers(skip: SkipAddition) -> list[int]:
    return [one for one in skip.summands if isinstance(one, int)]


def _weigh(agrees: Tensor, gamma: float, like: Tensor) -> Tensor:
    """The weights of a term: more where it does not have the opposite sign of the sum."""
    return agrees.to(like.dtype) * gamma + 1


def _scale_to_terms(
    op: Operation, skip: SkipAddition, gradient: Tensor, gamma: float
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The gradient of terms before they are weighed, and where each agrees with the sum."""
    agree = skip.shared.agree
    if skip.is_last:
        terms = _add_up_terms(op, {})
        size, signs = op.output.abs(), op.output.sign()
        magnitudes = sum((term.abs() for term in terms.values()), torch.zeros_like(size))
        # As good as zero, so that the quotient is 1 / (1 + gamma) where all terms are zero.
        tiny = torch.finfo(size.dtype).tiny
        denominator = size * (1 + gamma / 2) + magnitudes * (gamma / 2) + tiny * (1 + gamma)
        gradient = gradient * ((size + tiny) / denominator)
        agree = tuple(terms[n].sign() * signs >= 0 for n in range(skip.shared.count))
        skip.shared.agree = () if skip.is_alone else agree
    if not agree:
        raise RuntimeError("A partial sum was passed before its whole.")
    return gradient, agree


def _add_up_terms(op: Operation, terms: dict[int, Tensor]) -> dict[int, Tensor]:
    """The terms of a sum by number, each of all summands that belong to it, given those so far."""
    summands = () if op.skip is None else op.skip.summands
    for one in summands:
        if not isinstance(one, int):
            _add_up_terms(one, terms)
    values = _list_values(op.fetch())  # partial sums may be in another segment than the whole
    for one, value in zip(summands, values, strict=True):
        if isinstance(one, int):
            terms[one] = terms[one] + value if one in terms else value
    return terms


def _list_values(op: Operation) -> tuple[Tensor, ...]:
    """What an operation adds."""
    if isinstance(op, Add):
        return op.a, op.b
    if isinstance(op, Function) and op.skip is not None and op.skip.stack_dim is not None:
        return op.inputs[0].detach().unbind(op.skip.stack_dim)
    raise TypeError(f"{op.name} adds no terms.")


def _add_gamma_rule(rules: RuleSet, name: str, gamma: float) -> RuleSet:
    """A set of rules for gradients, with the gamma rule at skip connections."""
    added = {"add": _share_addition(gamma), "sum": _share_stack(gamma)}
    return RuleSet(
        name,
        {**rules.rules, **added},
        supports_partial=rules.supports_partial,
        is_gradient=True,
        needs_skips=True,
        attention_factors=rules.attention_factors,
    )


@cache
def make_reslrp(gamma: float) -> RuleSet:
    """The rules of AttnLRP, with the gamma rule at skip connections."""
    return _add_gamma_rule(ATTNLRP, "reslrp", gamma)


RESIDUAL = register(_add_gamma_rule(BALANCED, "residual", 1.0))
RESLRP = register(make_reslrp(1.0))
