"""Products of experts: rows of tokens times the weights of the experts that they were sent to."""

from __future__ import annotations

from typing import Any

from whence.tracing.calls import TorchCall
from whence.tracing.ops.base import is_traced
from whence.tracing.ops.products import GroupedLinear
from whence.tracing.recording import Recording


def record_grouped_matmul(recording: Recording, call: TorchCall) -> Any:
    """Record the product of rows, sorted by their group, with the weights of all groups.

    Which expert a row is sent to is a constant, as for autograd.
    """
    x, weight = call.args[:2] if len(call.args) > 1 else (None, None)
    plain = call.argument(3, "bias") is None and call.argument(4, "out_dtype") is None
    if weight is None or is_traced(weight) or (x.dim(), weight.dim()) != (2, 3) or not plain:
        return recording.refuse(call.run(), call.name)
    function, groups = call.function, call.argument(2, "offs")
    return recording.apply(GroupedLinear(lambda a, b: function(a, b, offs=groups), weight), x)
