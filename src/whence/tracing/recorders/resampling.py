"""Calls that take weighted means of neighbours: interpolation, and sampling at places of a grid.

They are sums whose weights are constants. Relevance is shared by absolute values, as in a pooling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.tracing.calls import TorchCall
from whence.tracing.ops.base import is_traced
from whence.tracing.ops.function import Function
from whence.tracing.recording import Recording

_INTERPOLATION = ("input", "size", "scale_factor", "mode", "align_corners")


def record_interpolate(recording: Recording, call: TorchCall) -> Any:
    """Record an interpolation in any mode."""
    function, inputs = call.as_function()
    mode = call.argument(3, "mode", "nearest")
    operation = Function("sum", function, name=call.name, where=recording.where())
    if mode not in ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "area"):
        operation.absolute = _with_absolute_weights(call, inputs[0].shape)
    return recording.apply(operation, *inputs)


def _with_absolute_weights(call: TorchCall, shape: torch.Size) -> Callable[..., Tensor]:
    """The interpolation of two dimensions with the absolute values of its weights.

    Some weights of cubic ones are negative. They are products of one weight for each dimension,
    which are read from the interpolation of unit vectors.
    """
    given = dict(zip(_INTERPOLATION, call.args, strict=False)) | call.kwargs
    del given["input"]

    def read_weights(dim: int, like: Tensor) -> Tensor:
        length = shape[2 + dim]
        settings = dict(given)
        for name, kept in (("size", 2), ("scale_factor", 1.0)):
            if (value := given.get(name)) is not None:
                value = value[dim] if isinstance(value, list | tuple) else value
                settings[name] = (value, kept)
        unit = torch.eye(length, dtype=like.dtype, device=like.device)
        # Two columns, as torch's smoothed interpolation of a single one is wrong.
        image = unit.reshape(1, length, length, 1).repeat(1, 1, 1, 2)
        return F.interpolate(image, **settings)[0, :, :, 0].abs()

    def interpolate(x: Tensor) -> Tensor:
        with torch.no_grad():
            rows, columns = read_weights(0, x), read_weights(1, x)
        return rows.mT @ x @ columns

    return interpolate


def record_grid_sample(recording: Recording, call: TorchCall) -> Any:
    """Record samples at places of a grid, which decides what is read as a mask does.

    Gradients reach the grid, where it depends on the input; relevance does not.
    """
    image, grid = call.argument(0, "input"), call.argument(1, "grid")
    if not is_traced(image):
        return recording.refuse(call.run(), call.name)
    function, inputs = call.as_function()
    operation = Function("sum", function, name=call.name, where=recording.where())
    operation.is_by_value = is_traced(grid)
    if call.argument(2, "mode", "bilinear") == "bicubic":
        operation.absolute = _sample_with_absolute_weights(call)
    return recording.apply(operation, *inputs)


def _sample_with_absolute_weights(call: TorchCall) -> Callable[..., Tensor]:
    """Cubic sampling with the absolute values of its weights, read from images of one pixel."""
    names = ("mode", "padding_mode", "align_corners")
    settings = {n: call.argument(2 + i, n) for i, n in enumerate(names)}
    settings = {name: value for name, value in settings.items() if value is not None}
    constant = None if is_traced(call.argument(1, "grid")) else call.argument(1, "grid")

    def sample(x: Tensor, grid: Tensor | None = constant) -> Tensor:
        assert grid is not None
        size = x.shape[-2:]
        with torch.no_grad():
            units = torch.eye(size.numel(), dtype=x.dtype, device=x.device)
            units = units.reshape(1, -1, *size).expand(len(x), -1, -1, -1)
            weights = F.grid_sample(units, grid, **settings).abs()
        sampled = x.flatten(2) @ weights.flatten(2)
        return sampled.reshape(*x.shape[:2], *weights.shape[-2:])

    return sample
