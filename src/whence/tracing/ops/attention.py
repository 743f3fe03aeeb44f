"""Softmax attention: its softmax, and the whole of it as one operation that keeps no maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.tracing.ops.operations import Function, MatMul, Operation


class Softmax(Function):
    """Softmax over the last dimension of scaled scores, without the keys that a mask leaves out."""

    def __init__(self, scale: float, function: Callable[[Tensor], Tensor], **at: str) -> None:
        super().__init__("pass", function, mixes=1, **at)
        self._scale = scale

    def forward(self, *inputs: Tensor) -> Tensor:  # noqa: D102
        self.inputs = (inputs[0].detach(),)
        self.output = self.function(self.inputs[0])
        return self.output

    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:  # noqa: D102
        y = self.output.expand_as(cotangent)
        return (torch._softmax_backward_data(cotangent, y, -1, y.dtype).mul_(self._scale),)

    def only_rows(self, dim: int, start: int, length: int) -> Any:  # noqa: D102
        if dim == -1:
            return None
        small = self._narrowed(("output",), dim, start, length)
        small.inputs = (self.inputs[0].narrow(dim, start, length),)
        return small, (self.inputs[0].shape,)


def of_heads(reading: Tensor, heads: slice) -> Tensor:
    """Some heads of a reading behind an attention, (batch, heads, queries, width)."""
    # An index would be another call where it takes all heads, which cannot be made for classes.
    return reading.narrow(1, heads.start, heads.stop - heads.start)


class Attention(Operation):
    """Softmax attention as one operation that keeps no maps: they are computed again, in parts.

    This is for long sequences, whose maps would fill the memory. Readings pass it as they pass the
    three operations it is made of, some heads at a time.

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

    def __init__(
        self,
        scale: float,
        mask: Tensor | None,
        softmax: Callable[[Tensor, float, Tensor | None], Tensor],
        heads_at_once: int,
        **at: str,
    ) -> None:
        super().__init__(**at)
        self.heads_at_once = heads_at_once
        self._scale = scale
        self._mask = mask
        self._softmax = softmax

    def forward(self, *inputs: Tensor) -> Tensor:  # noqa: D102
        self.queries, self.keys, self.values = (x.detach() for x in inputs)
        parts = [self.spelled_out(heads)[-1].output for heads in self.parts()]
        self.output = torch.cat(parts, 1)
        return self.output

    def parts(self) -> list[slice]:
        """Heads that are worked on together."""
        heads, step = self.queries.shape[1], self.heads_at_once
        return [slice(at, min(at + step, heads)) for at in range(0, heads, step)]

    def spelled_out(self, heads: slice) -> tuple[MatMul, Softmax, MatMul]:
        """The operations that it is made of, for some heads."""
        mask = self._mask
        if mask is not None and mask.dim() > 2 and mask.shape[-3] > 1:
            mask = mask[..., heads, :, :]
        scores, product = MatMul(), MatMul()
        softmax = Softmax(self._scale, lambda s: self._softmax(s, self._scale, mask))
        scores.forward(self.queries[:, heads], self.keys[:, heads].mT)
        product.forward(softmax.forward(scores.output), self.values[:, heads])
        product.uses = self.uses
        for operation in (scores, softmax, product):
            operation.tape = self.tape
        softmax.attends = product.attends = product.a_is_map = True
        return scores, softmax, product

    def gradient(self, output: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        return self.propagate(output, lambda operation, value: operation.gradient(value))

    def propagate(
        self, output: Tensor, read: Callable[[Operation, Tensor], tuple[Tensor | None, ...]]
    ) -> tuple[Tensor | None, ...]:
        """Readings of queries, keys and values, by how the three operations are read."""
        found: list[tuple[Tensor, ...]] = []
        for heads in self.parts():
            scores, softmax, product = self.spelled_out(heads)
            to_map, to_values = read(product, of_heads(output, heads))
            del product
            assert to_map is not None
            (to_scores,) = read(softmax, to_map)
            del softmax, to_map
            assert to_scores is not None
            to_queries, to_keys = read(scores, to_scores)
            assert to_queries is not None
            assert to_keys is not None
            assert to_values is not None
            found.append((to_queries, to_keys.mT, to_values))
        return tuple(torch.cat(parts, 1) for parts in zip(*found, strict=True))

    def only_rows(self, dim: int, start: int, length: int) -> Any:  # noqa: D102
        if dim != -2:
            return None
        small = self._narrowed(("queries", "output"), dim, start, length)
        if self._mask is not None and self._mask.dim() > 1 and self._mask.shape[-2] > 1:
            small._mask = self._mask.narrow(dim, start, length)
        return small, (self.queries.shape, None, None)
