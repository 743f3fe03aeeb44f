"""RuleSet: one rule for each kind of operation; and the sets by name.

A rule is a function ``rule(operation, relevance) -> relevance of each input``.

The kinds: ``linear`` (a constant weight), ``matmul``, ``add``, ``product`` and ``quotient`` (both
operands depend on the input), ``sum`` (sums with constant weights: means, pooling, interpolation,
sampling; a second input is a grid that decides what is read, and gets None), ``shift`` (positions
added to patches; unchanged if a set has no rule for it) and ``pass`` (element-wise functions,
normalisation, softmax, scaling). Where several operations read one tensor, their relevances are
added, and a rule named ``shared`` may change the sum. To support an operation of your own, give it
a kind with `whence.register_operation` and a rule with `RuleSet.extend`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from whence.errors import NoRuleError, WhenceError
from whence.tracing import Trace
from whence.tracing.graph.skips import mark_skips
from whence.tracing.ops.base import Operation, Values
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.function import Function
from whence.tracing.ops.sums import Shift

Rule = Callable[[Any, Tensor], "Tensor | Values"]

_SomeRule = TypeVar("_SomeRule", bound=Rule)
# Rules that may be given several classes at once, by id: a rule need not be hashable.
_BATCHED: dict[int, Rule] = {}
_SETS: dict[str, RuleSet] = {}


def batched_over_classes(rule: _SomeRule) -> _SomeRule:
    """Declare that a rule may be given classes as a dimension before those of the output."""
    _BATCHED[id(rule)] = rule
    return rule


@dataclass(frozen=True, eq=False)
class RuleSet:
    """A named choice of one rule for each kind of operation.

    Attributes:
        name: Its name.
        rules: The rules, by kind.
        supports_partial: Whether rules may be given an operation that makes only some rows of the
            output, where relevance is zero in all others, or one of which not all inputs are
            wanted.
        is_gradient: Whether values are gradients read in another way, so that value times input is
            a contribution to the logit; otherwise they are relevances.
        conserves: Whether the shares of an operation's inputs sum to the relevance of its output,
            and none is negative.
        scales_by_sums: Whether a rule scales relevance so that it keeps its sum, which is 0 for a
            contrast of two classes. Positive and negative relevance then start apart.
        needs_skips: Whether rules must know which operations add up skip connections.
        reads_linear: Whether it matters what linear maps and sums have read and put out. It does
            not where they pass gradients as they are.
        attention_factors: What the rules for the parts of an attention come to, where that is its
            gradients by queries, keys and values, each times a factor; then no maps are needed.
    """

    name: str
    rules: Mapping[str, Rule]
    supports_partial: bool = False
    is_gradient: bool = False
    conserves: bool = False
    scales_by_sums: bool = False
    needs_skips: bool = False
    reads_linear: bool = True
    attention_factors: tuple[float, float, float] | None = None

    def extend(self, name: str, **rules: Rule) -> RuleSet:
        """This set under a new name, with rules added or replaced."""
        return RuleSet(
            name,
            {**self.rules, **rules},
            is_gradient=self.is_gradient,
            scales_by_sums=self.scales_by_sums,
            needs_skips=self.needs_skips,
        )

    def prepare(self, trace: Trace) -> None:
        """Find in a recorded pass what the rules must know of its operations."""
        if self.needs_skips:
            mark_skips(trace)

    def supports_classes(self, operation: Operation) -> bool:
        """Whether the rule for an operation may be given several classes at once."""
        if isinstance(operation, ChunkedAttention):
            return True  # which gives them to the rules one by one
        rules = [self.rules.get(operation.kind)]
        if operation.reader_count > 1 and "shared" in self.rules:
            rules.append(self.rules["shared"])
        return operation.supports_classes and all(id(rule) in _BATCHED for rule in rules)

    def propagate(self, operation: Operation, value: Tensor) -> Values:
        """Relevance of each input of an operation, given that of its output.

        Raises:
            NoRuleError: The set has no rule for the operation.
        """
        rule = self.rules.get(operation.kind)
        if isinstance(operation, ChunkedAttention):
            if self.attention_factors is not None:
                return operation.scale_gradient(value, self.attention_factors)
            return operation.propagate(value, self.propagate)
        if rule is None and isinstance(operation, Shift):
            rule = pass_unchanged
        if rule is None:
            raise NoRuleError.at_operation(
                self.name, operation.name, operation.where, operation.kind
            )
        if operation.reader_count > 1 and "shared" in self.rules:
            (value,) = _as_tuple(self.rules["shared"](operation, value))  # type: ignore[assignment]
        return _as_tuple(rule(operation, value))


def _as_tuple(result: Tensor | Values) -> Values:
    return result if isinstance(result, tuple) else (result,)


@batched_over_classes
def pass_unchanged(op: Function | Shift, relevance: Tensor) -> Tensor:
    """Pass relevance as it is; where the operation broadcast its input, it is summed back."""
    x = op.x if isinstance(op, Shift) else op.inputs[0]
    return op.sum_to_shape(relevance, x.shape)


def multiply(value: Tensor | None, factor: Tensor) -> Tensor | None:
    """A value times a factor, in place; None where there is no value."""
    return None if value is None else value.mul_(factor)


def offset_from_zero(denominator: Tensor) -> Tensor:
    """Move a non-negative denominator away from zero, in place."""
    return denominator.add_(max(1e-20, torch.finfo(denominator.dtype).tiny))


# Sets by name ------------------------------------------------------------------------------------


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
