"""The rule for linear maps in which only positive products take part, of all relevance sets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from whence.rules.ruleset import Rule, batched_over_classes
from whence.tracing.ops.products import HALF_TYPES, Linear, is_reduced_precision

_CANCELLED = 1e-3
# About so many multiplications take a GPU as long as the launches that the shortcut adds.
_FEW_PRODUCTS = 10**9


def z_plus(divide: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    r"""The rule in which only positive products take part.

    .. math:: R_j = \sum_i \frac{[x_j w_{ji}]^+}{\sum_{j'} [x_{j'} w_{j'i}]^+} R_i

    The denominator is (M(|x|, |w|) + M(x, w)) / 2, and M(x, w) is known from the forward pass. A
    positive product needs both factors of one sign, so a positive x_j takes its relevance through
    the positive weights and a negative one through the negative weights: three products with the
    weight in all. Where the two halves of the denominator cancel to less than a thousandth (a
    neuron with hardly a positive product), it is computed anew from the positive products alone.

    Args:
        divide: Divides relevance by the denominator.
    """

    def rule(op: Linear, relevance: Tensor) -> Tensor:
        if not op.x.numel():  # an expert that no token is sent to
            return relevance.new_zeros(*relevance.shape[: -op.output.dim()], *op.x.shape)
        w_positive, w_negative = op.weight.clamp(min=0), op.weight.clamp(max=0)
        x_positive, x_negative = op.x.clamp(min=0), op.x.clamp(max=0)
        coarse = is_reduced_precision() or op.x.dtype in HALF_TYPES
        plainly = op.guard.exact or coarse or _is_launch_bound(op)
        total = None if plainly else _sum_by_halves(op, w_positive)
        if total is None or _has_cancelled(op, total):
            total = op.add_map(op.map(x_positive, w_positive), x_negative, w_negative)
        s = divide(relevance, total)
        to_x = op.adjoint(s, w_positive).mul_(x_positive)
        return to_x.addcmul_(op.adjoint(s, w_negative), x_negative)

    return batched_over_classes(rule)


def _is_launch_bound(op: Linear) -> bool:
    """Whether a GPU multiplies faster than it is asked to: a product more is then fewer steps."""
    return op.x.is_cuda and op.output.numel() * op.x.shape[-1] < _FEW_PRODUCTS


def _sum_by_halves(op: Linear, w_positive: Tensor) -> Tensor:
    """The denominator as half of M(|x|, |w|) and half of the output."""
    less_bias = None if op.bias is None else op.bias * -0.5
    half = torch.sub(w_positive, op.weight, alpha=0.5)  # |w| / 2, in one step
    return op.map(op.x.abs(), half, less_bias).add_(op.output, alpha=0.5)


def _has_cancelled(op: Linear, total: Tensor) -> bool:
    """Whether somewhere a sum of something with the output is far smaller than the output."""
    if total.device.type == "cpu" and op.guard.sees_values:
        low, high = map(float, torch.aminmax(op.output))
        if float(total.amin()) >= _CANCELLED * max(-low, high):
            return False  # mostly that is enough to know, and it is cheap
    # By rows first: torch's compiler reads a row once, for this and for what is divided by it.
    lowest = op.output.abs().mul_(-_CANCELLED).add_(total).amin(-1).amin()
    return op.guard.shortcut_fails(lowest < 0)
