"""Softmax attention: its softmax, and the whole of it as one operation that keeps no maps."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.torch_internals import softmax_backward
from whence.tracing.ops.base import Function, Narrowed, Operation, Values
from whence.tracing.ops.products import MatMul

SOFTMAX = "softmax"
"""The name of operations that compute a softmax."""


def masked_softmax(scores: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Softmax of scaled scores under a boolean or additive mask; a row with no key left is zero."""
    if mask is None:
        return torch.softmax(scores * scale, -1)
    blocked = ~mask if mask.dtype == torch.bool else mask == -math.inf
    empty = blocked.all(-1, keepdim=True)
    if mask.dtype == torch.bool:
        scores = (scores * scale).masked_fill(blocked & ~empty, -math.inf)
    else:
        scores = scores * scale + mask.masked_fill(empty, 0)
    return torch.softmax(scores, -1).masked_fill(empty, 0)


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


def select_heads(value: Tensor, heads: slice) -> Tensor:
    """Some heads of a value at the output of an attention, (batch, heads, queries, width)."""
    # An index would be another call where it takes all heads, which cannot be made for classes.
    return value.narrow(1, heads.start, heads.stop - heads.start)


class ChunkedAttention(Operation):
    """Softmax attention as one operation that keeps no maps: they are computed again, in chunks.

    This is for long sequences, whose maps would fill the memory. Values pass it backward as they
    pass the three operations it is made of, some heads at a time.

    Attributes:
        queries: (batch, heads, queries, width).
        keys: (batch, heads, keys, width).
        values: (batch, heads, keys, width).
        heads_at_once: How many heads are worked on together.
    """

    kind = "attention"
    queries: Tensor
    keys: Tensor
    values: Tensor

    def __init__(self, scale: float, mask: Tensor | None, heads_at_once: int) -> None:
        super().__init__(name="attention")
        self.heads_at_once = heads_at_once
        self._scale = scale
        self._mask = mask

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        self.queries, self.keys, self.values = (x.detach() for x in inputs)
        outputs = [self.split_operations(heads)[-1].output for heads in self.head_chunks()]
        self.output = torch.cat(outputs, 1)
        return self.output

    def head_chunks(self) -> list[slice]:
        """Heads that are worked on together."""
        heads, step = self.queries.shape[1], self.heads_at_once
        return [slice(at, min(at + step, heads)) for at in range(0, heads, step)]

    def split_operations(self, heads: slice) -> tuple[MatMul, Softmax, MatMul]:
        """The operations that it is made of, for some heads: scores, softmax, product."""
        mask = self._mask
        if mask is not None and mask.dim() > 2 and mask.shape[-3] > 1:
            mask = mask[..., heads, :, :]
        scores, softmax, product = MatMul(), Softmax(self._scale, mask), MatMul()
        scores.forward(self.queries[:, heads], self.keys[:, heads].mT)
        product.forward(softmax.forward(scores.output), self.values[:, heads])
        product.reader_count = self.reader_count
        for operation in (scores, softmax, product):
            operation.guard, operation.batch = self.guard, self.batch
        softmax.in_attention = product.in_attention = product.a_is_attention_map = True
        return scores, softmax, product

    @override
    def gradient(self, output: Tensor) -> Values:
        return self.propagate(output, lambda operation, value: operation.gradient(value))

    def propagate(self, output: Tensor, read: Callable[[Operation, Tensor], Values]) -> Values:
        """Values of queries, keys and values, by how they pass the three operations."""
        chunks: list[tuple[Tensor, ...]] = []
        for heads in self.head_chunks():
            scores, softmax, product = self.split_operations(heads)
            to_map, to_values = _require(read(product, select_heads(output, heads)))
            del product
            (to_scores,) = _require(read(softmax, to_map))
            del softmax, to_map
            to_queries, to_keys = _require(read(scores, to_scores))
            chunks.append((to_queries, to_keys.mT, to_values))
        return tuple(torch.cat(chunk, 1) for chunk in zip(*chunks, strict=True))

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        if dim != -2:
            return None
        small = self._narrow(("queries", "output"), dim, start, length)
        if self._mask is not None and self._mask.dim() > 1 and self._mask.shape[-2] > 1:
            small._mask = self._mask.narrow(dim, start, length)
        return small, (self.queries.shape, None, None)


def _require(values: Values) -> tuple[Tensor, ...]:
    """The values of all inputs, of which a rule left out none."""
    complete = tuple(value for value in values if value is not None)
    if len(complete) != len(values):
        raise RuntimeError("A rule gave no value for an input of attention that is wanted.")
    return complete
