"""Marks of windows: convolutions, pooling, interpolation and other sums of neighbours.

Samples and channels in which marks are all the same are taken as one, which saves nearly all of the
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from whence._util import torch_internals as internals
from whence.tracing.marks import compact, mark_any
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import Convolution

# Interpolations and samples weigh what they do not read by numbers that may be rounded.
_NO_WEIGHT = 1e-7
_BY_CHANNEL = ("interpolate", "avg_pool", "adaptive_avg_pool")
_SETTINGS = tuple[Sequence[int], Sequence[int], Sequence[int]]


def mark_convolved(operation: Convolution, marks: Tensor) -> Tensor:
    """Marks of the receptive field, in all channels of the groups that are marked."""
    stride, padding, dilation, transposed, added, groups = operation.settings
    shape, size = operation.x.shape, operation.weight.shape[2:]
    dims = len(size)
    small = compact(marks)
    by_group = small.shape[-dims - 1] > 1 and groups > 1
    count = groups if by_group else 1
    small = small.reshape(-1, count, small.shape[-dims - 1] // count, *small.shape[-dims:]).amax(2)
    settings = (list(stride), list(padding), list(dilation), transposed, list(added), count)
    found = _run_backward(small, shape[-dims:], size, settings, marks.shape[-dims:])
    found = found.reshape(len(marks), -1, count, 1, *shape[-dims:])
    found = found.expand(-1, -1, -1, shape[1] // count, *[-1] * dims).flatten(2, 3)
    return found.expand(len(marks), *shape)


def mark_pooled(
    marks: Tensor,
    shape: torch.Size,
    windows: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
) -> Tensor:
    """Marks of the windows of a maximum, in the same channel: (choices, *shape).

    Args:
        marks: Of the maxima.
        shape: The shape of the input.
        windows: Size, stride, padding and dilation.
    """
    size, stride, padding, dilation = windows
    dims = len(size)
    small = compact(marks)
    leading = small.shape[:-dims]
    settings = (list(stride), list(padding), list(dilation), False, [0] * dims, 1)
    flat = small.reshape(-1, 1, *small.shape[-dims:])
    found = _run_backward(flat, shape[-dims:], size, settings, marks.shape[-dims:])
    return found.reshape(*leading, *shape[-dims:]).expand(len(marks), *shape)


def _run_backward(
    marks: Tensor,
    shape: Sequence[int],
    size: Sequence[int],
    settings: tuple[list[int], list[int], list[int], bool, list[int], int],
    whole: Sequence[int],
) -> Tensor:
    """The gradient of a convolution with a kernel of ones, in groups of one channel each."""
    stride, padding, *_, groups = settings
    if {*size, *stride} == {1} and not any(padding):
        return marks.expand(*marks.shape[:2], *shape)
    marks = marks.expand(*marks.shape[:2], *whole)
    x = marks.new_empty(len(marks), groups, *shape)
    return internals.convolution_backward(
        marks.contiguous(), x, marks.new_ones(groups, 1, *size), settings
    ).round()


# Sums --------------------------------------------------------------------------------------------


def mark_summed(operation: Function, marks: Tensor) -> list[Tensor | None]:
    """Marks of what a sum adds up, by its weights; those of places that a grid names, too."""
    shape = operation.inputs[0].shape
    by_channel = operation.name.startswith(_BY_CHANNEL) and len(shape) > 2
    if by_channel and len(shape) == operation.output.dim():
        function = operation.absolute or operation.function  # so that nothing cancels
        return [mark_by_channel(function, marks, shape)]
    operation = operation.fetch().with_absolute_weights()
    summed, *held = internals.batched_map(operation.vjp)(marks)
    if operation.name != "grid_sample" or summed is None:
        return [summed, *held]
    # A grid says for each place where to read, in all channels.
    places = mark_any(marks, 2).movedim(2, -1)
    grids = [places.expand(len(marks), *grid.shape) for grid in operation.inputs[1:]]
    return [torch.gt(summed, _NO_WEIGHT).to(marks.dtype), *grids]


def mark_by_channel(
    function: Callable[..., Tensor], marks: Tensor, shape: torch.Size | Sequence[int]
) -> Tensor:
    """Marks of what a function reads that treats samples and channels alike: (choices, *shape)."""
    leading = [1 if marks.stride(dim) == 0 else marks.shape[dim] for dim in (1, 2)]
    small = marks[:, : leading[0], : leading[1]]
    with torch.enable_grad():
        x = marks.new_zeros(len(small) * leading[0], leading[1], *shape[2:], requires_grad=True)
        y = function(x)
        (found,) = torch.autograd.grad(y, x, small.flatten(0, 1).expand_as(y).to(y.dtype))
    found = (found > _NO_WEIGHT).to(marks.dtype)
    return found.reshape(len(marks), *leading, *shape[2:]).expand(len(marks), *shape)


def mark_adaptive(marks: Tensor, shape: torch.Size, dims: int) -> Tensor:
    """Marks of the windows of an adaptive maximum, which are those of the adaptive mean."""
    pool: Callable[..., Tensor] = F.adaptive_avg_pool2d if dims == 2 else F.adaptive_avg_pool3d
    size = tuple(marks.shape[-dims:])
    batched = marks if len(shape) == dims + 2 else marks.unsqueeze(1)
    whole = shape if len(shape) == dims + 2 else (1, *shape)
    found = mark_by_channel(lambda x: pool(x, size), batched, whole)
    return found.reshape(len(marks), *shape)
