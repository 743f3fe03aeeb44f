"""Calls that write numbers to places, or add them up there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.tracing.calls import TorchCall
from whence.tracing.ops.base import is_traced
from whence.tracing.ops.function import Function
from whence.tracing.recorders.functions import record_routing
from whence.tracing.recording import Recording


def record_index_add(recording: Recording, call: TorchCall) -> Any:
    """Record x with rows of another tensor added to some of its rows."""
    names = ("input", "dim", "index", "source")
    x, dim, index, source = (call.argument(i, n) for i, n in enumerate(names))
    alpha = call.kwargs.get("alpha", 1)
    if not is_traced(source):
        return _add_constant(recording, call, x)
    repeated = recording.guard.look_at(torch.tensor(index.unique().numel() != index.numel()))
    with recording.active():
        source = source if alpha == 1 else source * alpha
    zeros = torch.zeros_like(x).detach()
    if repeated:
        added = _add_up(recording, lambda s: zeros.index_add(dim, index, s), source, call.name)
    else:
        args = zeros, dim, index, source
        added = record_routing(recording, TorchCall(call.name, torch.index_add, args, {}))
    with recording.active():
        return x + added


def record_scatter(recording: Recording, call: TorchCall) -> Any:
    """Record numbers that are written to places; those that are added there are refused."""
    if call.argument(4, "reduce"):
        return recording.refuse(call.run(), call.name)
    return record_routing(recording, call)


def record_scatter_add(recording: Recording, call: TorchCall) -> Any:
    """Record x with numbers added to some of its places."""
    names = ("input", "dim", "index", "src")
    x, dim, index, source = (call.argument(i, n) for i, n in enumerate(names))
    if not is_traced(source):
        return _add_constant(recording, call, x)
    zeros = torch.zeros_like(x).detach()
    added = _add_up(recording, lambda s: zeros.scatter_add(dim, index, s), source, call.name)
    with recording.active():
        return x + added


def record_scatter_reduce(recording: Recording, call: TorchCall) -> Any:
    """Record sums, means or extremes of numbers that are written to the same place."""
    names = ("input", "dim", "index", "src", "reduce")
    x, dim, index, source, how = (call.argument(i, n) for i, n in enumerate(names))
    keeps = call.argument(5, "include_self", True)
    if how == "sum" and keeps:
        return record_scatter_add(recording, call)
    if how in ("amax", "amin"):
        return record_routing(recording, call)
    if how not in ("sum", "mean") or not is_traced(source) or is_traced(x):
        return recording.refuse(call.run(), call.name)
    zeros, constant = torch.zeros_like(x).detach(), torch.zeros_like(source).detach()

    def reduce(s: Tensor) -> Tensor:
        return zeros.scatter_reduce(dim, index, s, how, include_self=keeps)

    added = _add_up(recording, reduce, source, call.name)
    with recording.active():
        return added + x.scatter_reduce(dim, index, constant, how, include_self=keeps)


def record_index_put(recording: Recording, call: TorchCall) -> Any:
    """Record numbers that are written to places; those that are added are refused."""
    if call.argument(3, "accumulate", False):
        return recording.refuse(call.run(), call.name)
    return record_routing(recording, call)


def _add_up(
    recording: Recording, function: Callable[[Tensor], Tensor], source: Tensor, name: str
) -> Tensor:
    """Record a sum of numbers in places."""
    operation = Function("sum", function, name=name, where=recording.where("sum"))
    operation.is_by_value = True
    return recording.apply(operation, source)


def _add_constant(recording: Recording, call: TorchCall, x: Tensor) -> Any:
    """What is added does not depend on the input: the ordinary backward hands on all to x."""
    return record_routing(recording, call) if is_traced(x) else call.run()
