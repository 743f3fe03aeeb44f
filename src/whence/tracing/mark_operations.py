"""How marks pass single operations backward, by structure and not by numbers.

So they mostly need the shapes of tensors alone, whose numbers may have been freed. Left out are the
mean and the spread by which a norm divides, as no token stands for them.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from whence.tracing.mark_windows import mark_convolved, mark_summed
from whence.tracing.marks import is_pointwise, mark_all, mark_any, sum_marks
from whence.tracing.ops.base import Operation
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import ConstantMatMul, Convolution, Linear, MatMul
from whence.tracing.ops.sums import Shift

# What products with constants keep: marks pass them many times.
_KEPT: WeakKeyDictionary[Function, Tensor | None] = WeakKeyDictionary()


def is_by_value(operation: Operation) -> bool:
    """Whether values, of an index, a grid or a mask, decide which elements an operation reads."""
    if isinstance(operation, ConstantMatMul):
        is_parameter = isinstance(operation.weight, nn.Parameter)
        return not is_parameter and not bool(operation.weight.all())
    if not isinstance(operation, Function):
        return False
    return operation.is_by_value or _find_kept(operation) is not None


def pass_operation(operation: Operation, marks: Tensor, batch: int) -> list[Tensor | None] | None:
    """Marks of the inputs of an operation, given those of its output; None if it is not known."""
    choices = len(marks)
    if isinstance(operation, Convolution):
        return [mark_convolved(operation, marks)]
    if isinstance(operation, ConstantMatMul):
        return [_mark_multiplied(operation, marks)]
    if isinstance(operation, Linear):
        return [mark_any(marks, -1).expand(choices, *operation.x.shape)]
    if isinstance(operation, Shift):
        return [sum_marks(marks, operation.x.shape)]
    if isinstance(operation, MatMul):
        rows, columns = mark_any(marks, -1), mark_any(marks, -2)
        a = rows.expand(*rows.shape[:-1], operation.a.shape[-1])
        b = columns.expand(*columns.shape[:-2], operation.b.shape[-2], columns.shape[-1])
        return [sum_marks(a, operation.a.shape), sum_marks(b, operation.b.shape)]
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
    if _is_scaled(operation):
        kept = _find_kept(operation)
        return [marks if kept is None else marks * kept]
    if operation.kind == "quotient" and shapes[0] == operation.output.shape != shapes[1]:
        return [marks, None]  # the spread by which a norm divides
    if is_pointwise(operation):
        return [sum_marks(marks, shape) for shape in shapes]
    if operation.kind == "sum":
        return mark_summed(operation, marks)
    if operation.mixed_axes is not None:
        return [mark_any(marks, *operation.mixed_axes).expand_as(marks)]
    mixed = operation.mixed_dims or _count_mixed_dims(operation)
    if mixed is not None and shapes == [operation.output.shape]:
        dims = range(-mixed, 0)
        return [(mark_any(marks, *dims) if dims else marks).expand_as(marks)]
    return [mark_all(marks, shape, batch) for shape in shapes]


def _is_scaled(operation: Function) -> bool:
    """Whether an operation multiplies its one input by constants."""
    shapes = [x.shape for x in operation.inputs]
    return operation.name == "mul" and shapes == [operation.output.shape]


def _find_kept(operation: Function) -> Tensor | None:
    """What is not multiplied by 0, as padding is; None if all is kept."""
    if not _is_scaled(operation):
        return None
    if operation not in _KEPT:
        like = (operation.fetch() if operation.output.is_meta else operation).output
        factor = operation.function(torch.ones(like.shape, dtype=like.dtype, device=like.device))
        _KEPT[operation] = None if factor.all() else factor != 0
    return _KEPT[operation]


def _count_mixed_dims(operation: Function) -> int | None:
    """How many of the last dimensions a function mixes, shown by its values; None if all."""
    if [x.shape for x in operation.inputs] != [operation.output.shape]:
        return None
    x = operation.fetch().inputs[0].detach()
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


def _mark_multiplied(operation: ConstantMatMul, marks: Tensor) -> Tensor:
    """Marks of rows or columns that a constant matrix adds up; where it is 0, it does not."""
    weight = operation.weight != 0
    if not weight.all():
        return operation.adjoint(marks, weight.to(marks.dtype))
    first, shape = operation.weight_first, operation.x.shape
    found = mark_any(marks, -2 if first else -1)
    wide = (
        [*found.shape[:-2], shape[-2], found.shape[-1]] if first else [*found.shape[:-1], shape[-1]]
    )
    return sum_marks(found.expand(wide), shape)
