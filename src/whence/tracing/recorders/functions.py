"""Calls that are one operation: functions, sums, and routing, which only moves numbers about."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence._util.torch_internals import skip_override_check
from whence.errors import LostGradientError
from whence.tracing import calls
from whence.tracing.calls import TorchCall
from whence.tracing.ops.base import is_traced
from whence.tracing.ops.function import Function
from whence.tracing.quotients import divides_by_own_sum, name_function
from whence.tracing.recording import Recording, flatten_lists


def record_routing(recording: Recording, call: TorchCall) -> Any:
    """Make a call whose ordinary backward routes relevance as it routes gradients."""
    args = call.args
    before: list[Any]
    if len(args) == 1 and not call.kwargs and isinstance(args[0], Tensor):
        before = [args[0].grad_fn]
    else:
        arguments = flatten_lists((*args, *call.kwargs.values()))
        before = [x.grad_fn for x in arguments if is_traced(x)]
    result = call.function(*args, **call.kwargs)
    if isinstance(result, Tensor) and result.dtype == torch.int8:
        raise LostGradientError.at_call(call.name, recording.where())
    return recording.mark_routing(result if result is not None else call.args[0], before)


def record_move(recording: Recording, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The same where the first argument alone is a tensor that depends on the input."""
    before = args[0].grad_fn
    result = function(*args)
    if type(result) is Tensor and recording.mark_move(result, before):
        return result
    return recording.mark_routing(result, (before,))


def record_function(recording: Recording, call: TorchCall, kind: str) -> Any:
    """Record a call as a function of one kind; one that depends on too many tensors is refused."""
    function, inputs = call.as_function()
    if not fits_kind(kind, inputs):
        return recording.refuse(call.run(), call.name)
    at = {"name": name_function(call), "where": recording.where(kind)}
    operation = Function(kind, function, count_mixed_dims(call), **at)
    operation.mixed_axes = _find_mixed_axes(call)
    if kind == "quotient" and len(inputs) == 2:
        operation.divides_by_own_sum = divides_by_own_sum(*inputs)
    return recording.apply(operation, *inputs)


def record_passing(recording: Recording, call: TorchCall) -> Any:
    """Record a function that relevance passes unchanged."""
    return record_function(recording, call, "pass")


def record_sum(recording: Recording, call: TorchCall) -> Any:
    """Record a sum or a mean."""
    return record_function(recording, call, "sum")


def run_body(recording: Recording, call: TorchCall) -> Any:
    """Run the body of a torch function that is itself written in Python, so its calls are seen."""
    if not isinstance(call.function, types.FunctionType):
        return recording.refuse(call.run(), call.name)
    body = skip_override_check(call.function)
    with recording.active():
        return body(*call.args, **call.kwargs)


def skip_dropout(recording: Recording, call: TorchCall) -> Any:  # noqa: ARG001  as others have it
    """Leave dropout out: models are explained as in evaluation mode."""
    return call.argument(0, "input")


def fits_kind(kind: str, inputs: list[Tensor]) -> bool:
    """Whether as many tensors depend on the input as an operation of this kind takes."""
    return len(inputs) == 1 if kind in ("pass", "sum", "softmax") else bool(inputs)


def count_mixed_dims(call: TorchCall) -> int | None:
    """How many of the last dimensions of its input a call mixes, if that is known."""
    if call.name in calls.ELEMENT_WISE:
        # A constant of fewer dimensions is the same for all rows that are counted further ahead.
        others = (v for v in (*call.args, *call.kwargs.values()) if isinstance(v, Tensor))
        return max((v.dim() for v in others if not is_traced(v)), default=0)
    if call.name in ("layer_norm", "rms_norm"):
        return len(call.argument(1, "normalized_shape"))
    if call.name == "softmax":
        return 1 if call.argument(1, "dim") in (-1, call.argument(0, "input").dim() - 1) else None
    return None


def _find_mixed_axes(call: TorchCall) -> tuple[int, ...] | None:
    """The dimensions that a softmax mixes, counted from the end."""
    if call.name not in ("softmax", "log_softmax", "softmin"):
        return None
    dim = call.argument(1, "dim")
    size = call.argument(0, "input").dim()
    return (dim % size - size,) if isinstance(dim, int) and size else None
