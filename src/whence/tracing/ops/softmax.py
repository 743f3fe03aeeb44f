"""Softmax over keys, under a mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.torch_internals import softmax_backward
from whence.tracing.ops.base import Narrowed
from whence.tracing.ops.function import Function

SOFTMAX = "softmax"
"""The name of operations that compute a softmax."""


def masked_softmax(scores: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Softmax of scaled scores under a boolean or additive mask; a row with no key left is zero."""
    if mask is None:
        return torch.softmax(scores * scale, -1)
    return overwrite_and_normalize(scores * scale, mask)


def overwrite_and_normalize(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax of scores under a mask; they are overwritten where shapes allow, as they are large.

    A row with no key left is zero.
    """
    blocked = ~mask if mask.dtype == torch.bool else mask == -math.inf
    empty = blocked.all(-1, keepdim=True)
    fits = torch.broadcast_shapes(scores.shape, mask.shape) == scores.shape  # type: ignore[no-untyped-call]
    if mask.dtype == torch.bool:
        fill = Tensor.masked_fill_ if fits else Tensor.masked_fill
        scores = fill(scores, blocked & ~empty, -math.inf)
    else:
        fits &= mask.dtype == scores.dtype
        scores = (Tensor.add_ if fits else Tensor.add)(scores, mask.masked_fill(empty, 0))
    weights = torch.softmax(scores, -1)
    fill = Tensor.masked_fill if weights.requires_grad else Tensor.masked_fill_
    return fill(weights, empty, 0)


class Softmax(Function):
    """Softmax over the last dimension of scaled scores, under a mask."""

    def __init__(self, scale: float, mask: Tensor | None) -> None:
        super().__init__(
            "pass", lambda scores: masked_softmax(scores, scale, mask), mixed_dims=1, name=SOFTMAX
        )
        self._scale = scale

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        self.inputs = (inputs[0].detach(),)
        self.output = self.function(self.inputs[0])
        return self.output

    @override
    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        output = self.output.expand_as(cotangent)
        return (softmax_backward(cotangent, output, -1).mul_(self._scale),)

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        if dim == -1:
            return None
        small = self._narrow(("output",), dim, start, length)
        small.inputs = (self.inputs[0].narrow(dim, start, length),)
        return small, (self.inputs[0].shape,)
