"""Relevance rules: how much of an operation's relevance each of its inputs gets.

A rule is a function ``rule(operation, relevance) -> relevance of each input``; a `RuleSet` names
one for each kind of operation. Four sets come with whence. ``reference`` is what the authors of
the method published as code, ``paper`` what they wrote down as equations, ``authors_lrp`` what they
ran as the LRP that they compare with, and ``stable`` spreads relevance by absolute shares, so that
nothing is divided by a difference that may vanish.

The kinds: ``linear`` (a constant weight), ``matmul``, ``add``, ``product`` and ``quotient`` (both
operands depend on the input), ``sum`` (sums and means along a dimension), ``shift`` (positions
added to patches; unchanged if a set has no rule for it) and ``pass`` (element-wise functions,
normalisation, softmax, scaling). Where several operations read one tensor, their relevances are
added, and a rule named ``shared`` may change the sum. To support an operation of your own, give it
a kind with `whence.register_operation` and a rule with `RuleSet.extended`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from whence.engine.compiled.program import is_written_down
from whence.errors import NoRuleError, WhenceError
from whence.tracing.ops.attention import Attention
from whence.tracing.ops.operations import (
    Add,
    Convolution,
    Function,
    Linear,
    MatMul,
    Operation,
    Shift,
)
from whence.tracing.ops.products import are_coarse, matmul

Rule = Callable[[Any, Tensor], "Tensor | tuple[Tensor | None, ...]"]

# Rules that know what to do with classes as a dimension before those of the output.
_OF_CLASSES: dict[int, Rule] = {}  # by id: a rule need not be hashable
_Some = TypeVar("_Some", bound=Rule)


def of_classes(rule: _Some) -> _Some:
    """Declare that a rule may be given several classes at once."""
    _OF_CLASSES[id(rule)] = rule
    return rule


@dataclass(frozen=True, eq=False)
class RuleSet:
    """A named choice of one rule for each kind of operation.

    Attributes:
        name: Its name.
        rules: The rules, by kind.
        in_parts: Whether rules may be given an operation that makes only some rows of the output,
            where relevance is zero in all others, or one of which not all inputs are wanted.
    """

    name: str
    rules: Mapping[str, Rule]
    in_parts: bool = False

    def extended(self, name: str, **rules: Rule) -> RuleSet:
        """This set under a new name, with rules added or replaced."""
        return RuleSet(name, {**self.rules, **rules})

    def takes_classes(self, operation: Operation) -> bool:
        """Whether the rule for an operation may be given several classes at once."""
        rules = [self.rules.get(operation.kind)]
        if operation.uses > 1 and "shared" in self.rules:
            rules.append(self.rules["shared"])
        return operation.takes_classes and all(id(rule) in _OF_CLASSES for rule in rules)

    def propagate(self, operation: Operation, relevance: Tensor) -> tuple[Tensor | None, ...]:
        """Relevance of each input of an operation, given that of its output.

        Raises:
            NoRuleError: The set has no rule for the operation.
        """
        rule = self.rules.get(operation.kind)
        if isinstance(operation, Attention):
            return operation.propagate(relevance, self.propagate)
        if rule is None and isinstance(operation, Shift):
            rule = unchanged
        if rule is None:
            raise no_rule(self.name, operation.name, operation.where, operation.kind)
        if operation.uses > 1 and "shared" in self.rules:
            relevance = self.rules["shared"](operation, relevance)  # type: ignore[assignment]
        result = rule(operation, relevance)
        return result if isinstance(result, tuple) else (result,)


def no_rule(rules: str, name: str, where: str, kind: str = "my_kind") -> NoRuleError:
    """The error for an operation that relevance cannot pass."""
    called = f", called in {where}" if where else ""
    return NoRuleError(
        f"Relevance cannot pass `{name}`{called}: the rule set '{rules}' has no rule for it. Say "
        f"what kind of operation it, or the module that it is part of, is with "
        f"whence.register_operation(...), or give a rule: "
        f"whence.rules.get('{rules}').extended('mine', {kind}=my_rule)."
    )


# Quotients ---------------------------------------------------------------------------------------


def _kept_from_zero(denominator: Tensor) -> Tensor:
    """A non-negative denominator, moved in place."""
    return denominator.add_(max(1e-20, torch.finfo(denominator.dtype).tiny))


def _authors_quotient(a: Tensor, b: Tensor) -> Tensor:
    """The quotient a / b as the authors guard it: b is moved by 1e-9, and b = 0 gives 0."""
    moved = b + 1e-9
    moved.masked_fill_(moved == 0, 1e-9)
    return (a / moved).masked_fill_(b == 0, 0.0)


# linear: the same in every set -------------------------------------------------------------------


_CANCELLED = 1e-3


def _cancelled(op: Linear, total: Tensor) -> bool:
    """Whether somewhere a sum of something with the output is far smaller than the output."""
    if total.device.type == "cpu" and not is_written_down(total):
        low, high = map(float, torch.aminmax(op.output))
        if float(total.amin()) >= _CANCELLED * max(-low, high):
            return False  # mostly that is enough to know, and it is cheap
    return op.tape.doubts(op.output.abs().mul_(-_CANCELLED).add_(total).amin() < 0)


def positive_products(quotient: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    r"""The rule in which only positive products take part.

    .. math:: R_j = \sum_i \frac{[x_j w_{ji}]^+}{\sum_{j'} [x_{j'} w_{j'i}]^+} R_i

    The denominator is (M(|x|, |w|) + M(x, w)) / 2, and M(x, w) is known from the forward pass. A
    positive product needs both factors of one sign, so a positive x_j takes its relevance through
    the positive weights and a negative one through the negative weights: three products with the
    weight in all. Where the two halves of the denominator cancel to less than a thousandth (a
    neuron with hardly a positive product), it is computed anew from the positive products alone.

    Args:
        quotient: Divides relevance by the denominator.
    """

    def rule(op: Linear, relevance: Tensor) -> Tensor:
        less_bias = None if op.bias is None else op.bias * -0.5
        w_positive = op.weight.clamp(min=0)
        w_negative = op.weight - w_positive
        half = torch.sub(w_positive, op.weight, alpha=0.5)  # |w| / 2, in one step
        x_positive, x_negative = op.x.clamp(min=0), op.x.clamp(max=0)
        total = op.map(op.x.abs(), half, less_bias).add_(op.output, alpha=0.5)
        if op.tape.exact or are_coarse() or _cancelled(op, total):
            total = op.map(x_positive, w_positive).add_(op.map(x_negative, w_negative))
        s = quotient(relevance, total)
        to_x = op.adjoint(s, w_positive).mul_(x_positive)
        return to_x.addcmul_(op.adjoint(s, w_negative), x_negative)

    return of_classes(rule)


# stable ------------------------------------------------------------------------------------------


def _times(reading: Tensor | None, factor: Tensor) -> Tensor | None:
    return None if reading is None else reading.mul_(factor)


@of_classes
def _stable_matmul(op: MatMul, relevance: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, b = op.a if op.a_is_map else op.a.abs(), op.b.abs()
    total = matmul(a, b + b)
    to_a, to_b = op.adjoints(relevance / _kept_from_zero(total), a, b)
    return _times(to_a, a), _times(to_b, b)


@of_classes
def _stable_add(op: Add, relevance: Tensor) -> tuple[Tensor, Tensor]:
    a = op.a.abs()
    total = _kept_from_zero(a + op.b.abs())
    to_a = relevance * torch.div(a, total, out=total)
    # What is left goes to b: the two add up to the relevance exactly.
    return op.to_shapes(to_a, relevance - to_a)


def _stable_sum(op: Function, relevance: Tensor) -> Tensor:
    x = op.inputs[0].detach().abs()
    return x * op.vjp(relevance / _kept_from_zero(op.function(x)))[0]


def _to_numerator(op: Function, relevance: Tensor) -> tuple[Tensor, ...]:
    """Dividing by what depends on the input is taken as a normalisation, which passes relevance."""
    numerator, denominator = op.inputs
    return relevance.sum_to_size(numerator.shape), torch.zeros_like(denominator)


def _halves(op: Function, relevance: Tensor) -> tuple[Tensor, ...]:
    share = relevance / len(op.inputs)
    return tuple(share.sum_to_size(x.shape) for x in op.inputs)


# reference and paper -----------------------------------------------------------------------------


def _rescaled(op: Operation, relevance: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Scale two parts so that together they sum to the relevance, in each sample of the batch."""
    whole, sum_a, sum_b = (_sum_of_each_sample(r, op.tape.batch) for r in (relevance, a, b))
    both = sum_a.abs() + sum_b.abs()
    share_a = _authors_quotient(sum_a.abs(), both) * whole
    share_b = _authors_quotient(sum_b.abs(), both) * whole
    return a * _authors_quotient(share_a, sum_a), b * _authors_quotient(share_b, sum_b)


def _sum_of_each_sample(r: Tensor, batch: int) -> Tensor:
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


@of_classes
def _authors_shared(op: Operation, relevance: Tensor) -> Tensor:
    """R x / x, which the authors' code computes where a tensor x is read more than once.

    Only the guard of the quotient makes a difference, but a visible one: the residual stream of a
    real model holds values so small that its maps change in the third digit.
    """
    return _authors_quotient(relevance, op.output) * op.output


def _authors_add(op: Add, relevance: Tensor) -> tuple[Tensor, Tensor]:
    s = _authors_quotient(relevance, op.output)
    a, b = op.to_shapes(op.a * s, op.b * s)
    return _rescaled(op, relevance, a, b)


@of_classes
def _reference_matmul(op: MatMul, relevance: Tensor) -> tuple[Tensor | None, Tensor | None]:
    s = _authors_quotient(relevance, op.output).div_(2)
    to_a, to_b = op.adjoints(s, op.a, op.b)
    return _times(to_a, op.a), _times(to_b, op.b)


def _paper_matmul(op: MatMul, relevance: Tensor) -> tuple[Tensor, Tensor]:
    op.wanted = ()  # the parts are scaled to add up, so that both are needed
    to_a, to_b = op.adjoints(_authors_quotient(relevance, op.output), op.a, op.b)
    assert to_a is not None
    assert to_b is not None
    return _rescaled(op, relevance, op.a * to_a, op.b * to_b)


def _authors_positions(op: Shift, relevance: Tensor) -> Tensor:
    """Positions are a term like the patches that they are added to, and keep their part."""
    s = _authors_quotient(relevance, op.output)
    to_x = op.x * s
    return _rescaled(op, relevance, to_x.sum_to_size(op.x.shape), op.constant * s)[0]


def _unscaled_positions(op: Shift, relevance: Tensor) -> Tensor:
    return (op.x * _authors_quotient(relevance, op.output)).sum_to_size(op.x.shape)


def pixels_or(rule: Rule) -> Rule:
    r"""A rule for linear maps, and for a convolution of colours the rule for bounded inputs.

    With l and h the lowest and highest value of the image (the :math:`z^B` rule of Deep Taylor
    decomposition),

    .. math::
        R_j = \sum_i \frac{x_j w_{ji} - l w_{ji}^+ - h w_{ji}^-}
            {\sum_{j'} x_{j'} w_{j'i} - l w_{j'i}^+ - h w_{j'i}^-} R_i
    """

    def bounded(op: Linear, relevance: Tensor) -> Tensor | tuple[Tensor | None, ...]:
        if not (isinstance(op, Convolution) and op.x.dim() == 4 and op.x.shape[1] == 3):
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

    return bounded


def _doubled(op: Linear, relevance: Tensor) -> Tensor:
    """Products of positive and of negative inputs, each divided by its own sum.

    The relevance so grows by up to two at each layer, as it does in the baselines of the authors.
    """
    parts = []
    for sign in (1, -1):
        x, weight = (sign * (sign * t).clamp(min=0) for t in (op.x, op.weight))
        s = _authors_quotient(relevance, op.map(x, weight))
        parts.append(x * op.adjoint(s, weight))
    return parts[0] + parts[1]


def _unscaled_add(op: Add, relevance: Tensor) -> tuple[Tensor, Tensor]:
    s = _authors_quotient(relevance, op.output)
    return op.to_shapes(op.a * s, op.b * s)


def _authors_sum(op: Function, relevance: Tensor) -> Tensor:
    x = op.inputs[0].detach()
    return x * op.vjp(_authors_quotient(relevance, op.output))[0]


# every set ---------------------------------------------------------------------------------------


@of_classes
def unchanged(op: Function | Shift, relevance: Tensor) -> Tensor:
    """Relevance passes as it is; where the operation broadcast its input, it is summed back."""
    x = op.x if isinstance(op, Shift) else op.inputs[0]
    return op.to_shape(relevance, x.shape)


_STABLE = RuleSet(
    "stable",
    {
        "linear": positive_products(lambda a, b: a / _kept_from_zero(b)),
        "matmul": _stable_matmul,
        "add": _stable_add,
        "product": _halves,
        "quotient": _to_numerator,
        "sum": _stable_sum,
        "shift": unchanged,
        "pass": unchanged,
    },
    in_parts=True,
)
_REFERENCE = RuleSet(
    "reference",
    {
        "linear": pixels_or(positive_products(_authors_quotient)),
        "matmul": _reference_matmul,
        "add": _authors_add,
        "sum": _authors_sum,
        "shift": _authors_positions,
        "pass": unchanged,
        "shared": _authors_shared,
    },
    in_parts=True,
)
_SETS = {
    "stable": _STABLE,
    "reference": _REFERENCE,
    "paper": _REFERENCE.extended("paper", matmul=_paper_matmul),
    "authors_lrp": _REFERENCE.extended(
        "authors_lrp", linear=pixels_or(_doubled), add=_unscaled_add, shift=_unscaled_positions
    ),
}


def available() -> list[str]:
    """Names of the rule sets."""
    return list(_SETS)


def get(rules: str | RuleSet) -> RuleSet:
    """The rule set of a name; a rule set is returned as it is.

    Raises:
        WhenceError: There is none of that name.
    """
    if isinstance(rules, RuleSet):
        return rules
    if not isinstance(rules, str) or rules not in _SETS:
        raise WhenceError(f"There is no rule set {rules!r}. Available: {', '.join(available())}.")
    return _SETS[rules]


def register(rules: RuleSet) -> RuleSet:
    """Make a rule set available by its name, replacing one of the same name."""
    _SETS[rules.name] = rules
    return rules
