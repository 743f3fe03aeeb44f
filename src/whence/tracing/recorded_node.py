"""The autograd node of a recorded operation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from whence._util.torch_internals import SingleLevelFunction
from whence.tracing.ops.base import BackwardRules, Operation


class RecordedNode(SingleLevelFunction):  # type: ignore[misc]
    """The autograd node of an operation."""

    @staticmethod
    def forward(
        ctx: Any, operation: Operation, rules: BackwardRules | None, *inputs: Tensor
    ) -> Tensor:
        """Compute the output, and keep the operation."""
        ctx.operation, ctx.rules = operation, rules
        # The same numbers in a tensor of its own: what an operation keeps must not become part of
        # the graph, and a view made in here could not be written to in place.
        return operation.forward(*inputs).data

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Propagate by the rules, or as gradients."""
        operation: Operation = ctx.operation
        if ctx.rules is None:
            return (None, None, *operation.gradient(outputs[0]))
        return (None, None, *ctx.rules.propagate(operation, outputs[0]))
