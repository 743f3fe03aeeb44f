"""Marks of 0 and 1: which elements are meant, for several choices of tokens at once.

All marks have choices of tokens as their first dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.tracing import calls
from whence.tracing.ops.base import Operation
from whence.tracing.ops.function import Function, is_norm
from whence.tracing.ops.sums import Shift

# Functions of one tensor that treat each element by itself, by their name.
_POINTWISE = (calls.PASSING | calls.ELEMENT_WISE) - calls.MIXING

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


def sum_marks(marks: Tensor, shape: torch.Size) -> Tensor:
    """Marks of a tensor that was broadcast: of what any of its copies has marked."""
    if marks.shape[1:] == shape:
        return marks
    added = marks.dim() - 1 - len(shape)
    pairs = enumerate(zip(marks.shape[1 + added :], shape, strict=True), 1 + added)
    gone = [dim for dim, (wide, size) in pairs if size == 1 != wide]
    marks = mark_any(marks, *range(1, 1 + added), *gone)
    return marks.reshape(len(marks), *marks.shape[1 + added :])


def mark_all(marks: Tensor, shape: torch.Size, batch: int) -> Tensor:
    """Marks of everything that may depend on something that is marked."""
    choices = len(marks)
    if marks.dim() > 1 and len(shape) and marks.shape[1] == shape[0] == batch:
        by_sample = mark_any(marks, *range(2, marks.dim())).reshape(choices, batch)
        return by_sample.reshape(choices, batch, *[1] * (len(shape) - 1)).expand(choices, *shape)
    return mark_any(marks, *range(1, marks.dim())).reshape(-1, *[1] * len(shape)).expand(-1, *shape)


def is_pointwise(operation: Operation) -> bool:
    """Whether an element of the output stands for the same element of each input."""
    if not isinstance(operation, Function):
        return isinstance(operation, Shift)
    if operation.kind in ("product", "quotient") or operation.name in _POINTWISE:
        return True
    same = all(x.shape == operation.output.shape for x in operation.inputs)
    return same and (is_norm(operation) or operation.mixed_dims == 0)
