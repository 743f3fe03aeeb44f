"""The rule sets of Chefer, Gur and Wolf (CVPR 2021): ``reference``, ``paper`` and ``authors_lrp``.

``reference`` is what the authors published as code, ``paper`` what they wrote down as equations,
and ``authors_lrp`` what they ran as the LRP that they compare with.

The authors had no element-wise products of two tensors that depend on the input, such as gates.
Such a product is a matrix product of one by one, so the rule for those says what it gets: half to
each factor, in all three sets.
"""

from __future__ import annotations

from torch import Tensor

from whence.errors import WhenceError
from whence.rules.ruleset import (
    Rule,
    RuleSet,
    batched_over_classes,
    multiply,
    pass_unchanged,
    register,
)
from whence.rules.stable import pass_to_numerator, share_equally
from whence.rules.z_plus import z_plus
from whence.tracing.ops.base import Operation, Values
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import Convolution, Linear, MatMul
from whence.tracing.ops.sums import Add, Shift


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """The quotient a / b as the authors guard it: b is moved by 1e-9, and b = 0 gives 0."""
    moved = b + 1e-9
    moved.masked_fill_(moved == 0, 1e-9)
    return (a / moved).masked_fill_(b == 0, 0.0)


def _rescale(op: Operation, relevance: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Scale two parts so that together they sum to the relevance, in each sample of the batch."""
    whole, sum_a, sum_b = (_sum_each_sample(r, op.batch) for r in (relevance, a, b))
    both = sum_a.abs() + sum_b.abs()
    share_a = _divide(sum_a.abs(), both) * whole
    share_b = _divide(sum_b.abs(), both) * whole
    return a * _divide(share_a, sum_a), b * _divide(share_b, sum_b)


def _sum_each_sample(r: Tensor, batch: int) -> Tensor:
    """Sums that broadcast to the tensor they are of."""
    others = list(range(1, r.dim()))
    if r.shape[0] != batch and r.dim() > 1 and r.shape[1] == batch:  # the sequence comes first
        return r.sum([0, *others[1:]], keepdim=True)
    groups = r.shape[0] // batch
    if groups * batch != r.shape[0]:
        raise WhenceError(
            f"Which part of a tensor of shape {tuple(r.shape)} belongs to which of {batch} samples "
            f"cannot be told, as these rules need it. Explain one sample at a time, or with the "
            f"rules 'stable'."
        )
    sums = r.sum(others, keepdim=True)
    if groups > 1:  # heads or windows are folded into the batch
        sums = sums.reshape(batch, -1).sum(1).repeat_interleave(groups).view_as(sums)
    return sums


@batched_over_classes
def _divide_and_multiply(op: Operation, relevance: Tensor) -> Tensor:
    """R x / x, which the authors' code computes where a tensor x is read more than once.

    Only the guard of the quotient makes a difference, but a visible one: the residual stream of a
    real model holds values so small that its maps change in the third digit.
    """
    return _divide(relevance, op.output) * op.output


def _share_add(op: Add, relevance: Tensor) -> tuple[Tensor, Tensor]:
    s = _divide(relevance, op.output)
    a, b = op.sum_to_shapes(op.a * s, op.b * s)
    return _rescale(op, relevance, a, b)


@batched_over_classes
def _halve_matmul(op: MatMul, relevance: Tensor) -> tuple[Tensor | None, Tensor | None]:
    s = _divide(relevance, op.output).div_(2)
    to_a, to_b = op.adjoints(s, op.a, op.b)
    return multiply(to_a, op.a), multiply(to_b, op.b)


def _rescale_matmul(op: MatMul, relevance: Tensor) -> tuple[Tensor, Tensor]:
    op.wanted = ()  # the shares are scaled to add up, so that both are needed
    shares = op.adjoints(_divide(relevance, op.output), op.a, op.b)
    to_a, to_b = (x * s for x, s in zip((op.a, op.b), shares, strict=True) if s is not None)
    return _rescale(op, relevance, to_a, to_b)


def _share_product(op: Function, relevance: Tensor) -> tuple[Tensor, ...]:
    """Half of R c / c to each factor of c = a b: the rule for matrix products, for one by one.

    That is so with and without the rescaling of ``paper``, as both factors have the same share.
    Where c is 0, it gives nothing on.
    """
    return share_equally(op, _divide_and_multiply(op, relevance))


def _share_with_positions(op: Shift, relevance: Tensor) -> Tensor:
    """Positions are a term like the patches that they are added to, and keep their part."""
    s = _divide(relevance, op.output)
    to_x = op.x * s
    return _rescale(op, relevance, to_x.sum_to_size(op.x.shape), op.constant * s)[0]


def _share_with_positions_unscaled(op: Shift, relevance: Tensor) -> Tensor:
    return (op.x * _divide(relevance, op.output)).sum_to_size(op.x.shape)


def with_pixel_rule(rule: Rule) -> Rule:
    r"""A rule for linear maps, and for a convolution of colours the rule for bounded inputs.

    With l and h the lowest and highest value of the image (the :math:`z^B` rule of Deep Taylor
    decomposition),

    .. math::
        R_j = \sum_i \frac{x_j w_{ji} - l w_{ji}^+ - h w_{ji}^-}
            {\sum_{j'} x_{j'} w_{j'i} - l w_{j'i}^+ - h w_{j'i}^-} R_i
    """

    def share_bounded(op: Linear, relevance: Tensor) -> Tensor | tuple[Tensor | None, ...]:
        direct = isinstance(op, Convolution) and not op.is_transposed
        if not (direct and op.x.dim() == 4 and op.x.shape[1] == 3):
            return rule(op, relevance)
        low, high = (op.x * 0 + bound((1, 2, 3), True) for bound in (op.x.amin, op.x.amax))
        parts = (
            (op.x, op.weight, 1),
            (low, op.weight.clamp(min=0), -1),
            (high, op.weight.clamp(max=0), -1),
        )
        total = sum(sign * op.map(x, weight) for x, weight, sign in parts)
        s = relevance / (total + 1e-9)
        return sum(sign * x * op.adjoint(s, weight) for x, weight, sign in parts)  # type: ignore[return-value]

    return share_bounded


def _share_signs_apart(op: Linear, relevance: Tensor) -> Tensor:
    """Products of positive and of negative inputs, each divided by its own sum.

    The relevance so grows by up to two at each layer, as it does in the baselines of the authors.
    """
    parts = []
    for sign in (1, -1):
        x, weight = (sign * (sign * t).clamp(min=0) for t in (op.x, op.weight))
        s = _divide(relevance, op.map(x, weight))
        parts.append(x * op.adjoint(s, weight))
    return parts[0] + parts[1]


def _share_add_unscaled(op: Add, relevance: Tensor) -> tuple[Tensor, Tensor]:
    s = _divide(relevance, op.output)
    return op.sum_to_shapes(op.a * s, op.b * s)


def _share_sum(op: Function, relevance: Tensor) -> Values:
    x, *held = op.inputs
    return x.detach() * op.vjp(_divide(relevance, op.output))[0], *[None] * len(held)


REFERENCE = register(
    RuleSet(
        "reference",
        {
            "linear": with_pixel_rule(z_plus(_divide)),
            "matmul": _halve_matmul,
            "add": _share_add,
            "product": _share_product,
            "quotient": pass_to_numerator,
            "sum": _share_sum,
            "shift": _share_with_positions,
            "pass": pass_unchanged,
            "shared": _divide_and_multiply,
        },
        supports_partial=True,
        scales_by_sums=True,
    )
)
PAPER = register(REFERENCE.extend("paper", matmul=_rescale_matmul))
AUTHORS_LRP = register(
    REFERENCE.extend(
        "authors_lrp",
        linear=with_pixel_rule(_share_signs_apart),
        add=_share_add_unscaled,
        shift=_share_with_positions_unscaled,
    )
)
