"""The rule set ``stable``: relevance is shared by absolute values, so that nothing cancels.

It is conserved at each operation, is never negative, and no denominator vanishes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.rules.ruleset import (
    RuleSet,
    batched_over_classes,
    multiply,
    offset_from_zero,
    pass_unchanged,
    register,
)
from whence.rules.z_plus import z_plus
from whence.tracing.ops.base import Values
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import MatMul, matmul
from whence.tracing.ops.sums import Add


@batched_over_classes
def share_matmul(op: MatMul, relevance: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Half to each factor: with S = R / (|A| |B|), R_A = |A| (S |B|^T) / 2, R_B likewise."""
    a, b = op.a if op.a_is_attention_map else op.a.abs(), op.b.abs()
    total = matmul(a, b + b)
    to_a, to_b = op.adjoints(relevance / offset_from_zero(total), a, b)
    return multiply(to_a, a), multiply(to_b, b)


@batched_over_classes
def share_add(op: Add, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """R_a = |a| / (|a| + |b|) R, and R_b is the rest."""
    a = op.a.abs()
    total = offset_from_zero(a + op.b.abs())
    to_a = relevance * torch.div(a, total, out=total)
    # What is left goes to b: the two add up to the relevance exactly.
    return op.sum_to_shapes(to_a, relevance - to_a)


def share_sum(op: Function, relevance: Tensor) -> Values:
    """Shares of a sum of its first input, by absolute values; what only decides it gets none."""
    x, *held = (one.detach() for one in op.inputs)
    op = op.with_absolute_weights()
    x = x.abs()
    to_x = x * op.vjp(relevance / offset_from_zero(op.function(x, *held)))[0]
    return to_x, *[None] * len(held)


def pass_to_numerator(op: Function, relevance: Tensor) -> tuple[Tensor, ...]:
    """Dividing by what depends on the input is taken as a normalisation, which passes relevance."""
    numerator, denominator = op.inputs
    return relevance.sum_to_size(numerator.shape), torch.zeros_like(denominator)


def share_equally(op: Function, relevance: Tensor) -> tuple[Tensor, ...]:
    """The same share to each factor of an element-wise product."""
    share = relevance / len(op.inputs)
    return tuple(share.sum_to_size(x.shape) for x in op.inputs)


STABLE = register(
    RuleSet(
        "stable",
        {
            "linear": z_plus(lambda relevance, total: relevance / offset_from_zero(total)),
            "matmul": share_matmul,
            "add": share_add,
            "product": share_equally,
            "quotient": pass_to_numerator,
            "sum": share_sum,
            "shift": pass_unchanged,
            "pass": pass_unchanged,
        },
        supports_partial=True,
        conserves=True,
    )
)
