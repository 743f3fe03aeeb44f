"""Marks of 0 and 1, and how they pass single operations backward, by structure and not by numbers.

All marks have choices of tokens as their first dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from whence._util import torch_internals as internals
from whence._util.torch_internals import output_metadata
from whence.tracing import calls
from whence.tracing.ops.base import Function, Operation, Shift, is_norm
from whence.tracing.ops.products import ConstantMatMul, Convolution, Linear, MatMul
from whence.tracing.ops.softmax import ChunkedAttention

# Functions of one tensor that treat each element by itself, by their name.
_MIXING = frozenset("softmax log_softmax softmin layer_norm rms_norm group_norm normalize".split())
_POINTWISE = (calls.PASSING | calls.ELEMENT_WISE) - _MIXING

# Marks are mostly the same along whole dimensions, which are then expanded: a stride of 0. They are
# worked on without these dimensions, which saves nearly all of the time.


def compact(value: Tensor) -> Tensor:
    """The value with a length of 1 along dimensions in which it is expanded."""
    for dim in range(1, value.dim()):
        if value.stride(dim) == 0 and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


def to_marks(value: Tensor) -> Tensor:
    """Marks of what is not 0."""
    return (compact(value) != 0).to(value.dtype).expand(value.shape)


def add_marks(a: Tensor, b: Tensor) -> Tensor:
    """Marks of what either has marked."""
    return (compact(a) + compact(b)).expand(a.shape)


def mark_any(marks: Tensor, *dims: int) -> Tensor:
    """Marks of a length of 1 along some dimensions, where any was set there."""
    shape = list(marks.shape)
    for dim in dims:
        shape[dim] = 1
    return compact(marks).amax(dims, keepdim=True).expand(shape)


def mark_all(marks: Tensor, shape: torch.Size, batch: int) -> Tensor:
    """Marks of everything that may depend on something that is marked."""
    choices = len(marks)
    if marks.dim() > 1 and len(shape) and marks.shape[1] == shape[0] == batch:
        by_sample = mark_any(marks, *range(2, marks.dim())).reshape(choices, batch)
        return by_sample.reshape(choices, batch, *[1] * (len(shape) - 1)).expand(choices, *shape)
    return mark_any(marks, *range(1, marks.dim())).reshape(-1, *[1] * len(shape)).expand(-1, *shape)


# Single operations -------------------------------------------------------------------------------


def is_pointwise(operation: Operation) -> bool:
    """Whether an element of the output stands for the same element of each input."""
    if not isinstance(operation, Function):
        return isinstance(operation, Shift)
    if operation.kind in ("product", "quotient") or operation.name in _POINTWISE:
        return True
    same = all(x.shape == operation.output.shape for x in operation.inputs)
    return same and (is_norm(operation) or operation.mixed_dims == 0)


def pass_operation(operation: Operation, marks: Tensor, batch: int) -> list[Tensor | None] | None:
    """Marks of the inputs of an operation, given those of its output; None if it is not known."""
    choices = len(marks)
    if isinstance(operation, Convolution):
        return [_convolve_backward(operation, marks)]
    if isinstance(operation, ConstantMatMul):
        return [operation.adjoint(marks, (operation.weight != 0).to(marks.dtype))]
    if isinstance(operation, Linear):
        return [mark_any(marks, -1).expand(choices, *operation.x.shape)]
    if isinstance(operation, Shift):
        return [operation.sum_to_shape(marks, operation.x.shape)]
    if isinstance(operation, MatMul):
        rows, columns = mark_any(marks, -1), mark_any(marks, -2)
        a = rows.expand(*rows.shape[:-1], operation.a.shape[-1])
        b = columns.expand(*columns.shape[:-2], operation.b.shape[-2], columns.shape[-1])
        return [_sum_to(a, operation.a.shape), _sum_to(b, operation.b.shape)]
    if isinstance(operation, ChunkedAttention):
        rows = mark_any(marks, -1)
        every = mark_any(rows, -2)
        return [
            rows.expand(choices, *operation.queries.shape),
            every.expand(choices, *operation.keys.shape),
            every.expand(choices, *operation.values.shape),
        ]
    if isinstance(operation, Function):
        return _pass_function(operation, marks, batch)
    return None


def _pass_function(operation: Function, marks: Tensor, batch: int) -> list[Tensor | None]:
    shapes = [x.shape for x in operation.inputs]
    if operation.name == "mul" and shapes == [operation.output.shape]:
        # Nothing is left of what is multiplied by 0, such as padding.
        (factor,) = operation.vjp(torch.ones_like(operation.output))
        return [marks * (factor != 0)]
    if is_pointwise(operation):
        return [operation.sum_to_shape(marks, shape) for shape in shapes]
    if operation.kind == "sum":
        # The Jacobian of a sum or a mean has no negative entries that could cancel.
        return list(internals.batched_map(operation.vjp)(marks))
    mixed = operation.mixed_dims or _count_mixed_dims(operation)
    if mixed is not None and shapes == [operation.output.shape]:
        dims = range(-mixed, 0)
        return [(mark_any(marks, *dims) if dims else marks).expand_as(marks)]
    return [mark_all(marks, shape, batch) for shape in shapes]


def _count_mixed_dims(operation: Function) -> int | None:
    """How many of the last dimensions a function mixes, shown by its values; None if all."""
    x = operation.inputs[0].detach()
    if len(operation.inputs) != 1 or x.shape != operation.output.shape:
        return None
    for mixed in range(x.dim() - 1):
        rows = torch.arange(x.shape[: x.dim() - mixed].numel(), device=x.device)
        rows = rows.reshape(*x.shape[: x.dim() - mixed], *[1] * mixed)
        # Rows that are changed must not change others: those whose number has a bit, for each bit.
        bits = range(max(1, rows.numel() - 1).bit_length())
        groups = [(rows >> bit) & 1 == value for bit in bits for value in (0, 1)]
        if all(_keeps_others(operation, x, group) for group in groups):
            return mixed
    return None


def _keeps_others(operation: Function, x: Tensor, changed: Tensor) -> bool:
    output = operation.function(torch.where(changed, x * 0.5 + 1, x))
    return bool(((output == operation.output) | changed).all())


def _convolve_backward(operation: Convolution, marks: Tensor) -> Tensor:
    """Marks of the receptive field; channels are taken as one."""
    stride, padding, dilation, *_ = operation.settings
    return _mark_windows(
        marks, operation.x.shape, operation.weight.shape[2:], stride, padding, dilation
    )


def _mark_windows(
    marks: Tensor,
    shape: torch.Size,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Marks of the windows that outputs are made of, in all channels: (choices, *shape)."""
    dims = len(size)
    merged = mark_any(marks, -dims - 1).reshape(-1, 1, *marks.shape[-dims:])
    x = merged.new_empty(len(merged), 1, *shape[-dims:])
    settings = (list(stride), list(padding), list(dilation), False, [0] * dims, 1)
    found = internals.convolution_backward(merged, x, merged.new_ones(1, 1, *size), settings)
    found = found.round().reshape(len(marks), *shape[: -dims - 1], 1, *shape[-dims:])
    return found.expand(len(marks), *shape)


def pass_pooling(node: Node, marks: Tensor) -> Tensor:
    """Marks of the windows of a maximum, of which autograd would mark one element alone."""
    return _mark_windows(marks, _input_shape(node, 0), *internals.saved_windows(node))


def _input_shape(node: Node, number: int) -> torch.Size:
    upstream, nr = node.next_functions[number]
    if upstream is None:
        raise ValueError("What does not depend on the input has no marks.")
    return output_metadata(upstream)[nr].shape


def _sum_to(marks: Tensor, shape: torch.Size) -> Tensor:
    """Undo the broadcasting of a factor's leading dimensions."""
    return marks.sum_to_size(len(marks), *[1] * (marks.dim() - 1 - len(shape)), *shape).reshape(
        len(marks), *shape
    )
