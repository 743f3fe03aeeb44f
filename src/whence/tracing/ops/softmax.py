"""Softmax attention: its operations, kept in full, or as one that keeps no attention maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
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
    scores = scores * scale
    if mask.dtype == torch.bool:
        # In place where shapes allow it, since maps can be large.
        fits = torch.broadcast_shapes(scores.shape, mask.shape) == scores.shape  # type: ignore[no-untyped-call]
        fill = Tensor.masked_fill_ if fits else Tensor.masked_fill
        scores = fill(scores, blocked & ~empty, -math.inf)
    else:
        scores = scores + mask.masked_fill(empty, 0)
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


def select_heads(value: Tensor, heads: slice) -> Tensor:
    """Some heads of a value at the output of an attention, (batch, heads, queries, width)."""
    # An index would be another call where it takes all heads, which cannot be made for classes.
    return value.narrow(1, heads.start, heads.stop - heads.start)


class ChunkedAttention(Operation):
    """Softmax attention as one operation that keeps no maps: they are computed again, in chunks.

    This is for long sequences, whose maps would fill the memory. Values pass it backward as they
    pass the three operations it is made of, some heads or queries of one class at a time.

    Args:
        scale: The factor of the scores.
        mask: A boolean or additive mask, if there is one.
        heads_at_once: How many heads are worked on together.
        queries_at_once: How many queries of them; all if left out.
        causal: Whether a token attends only to those up to itself, and there is no other mask.

    Attributes:
        queries: (batch, heads, queries, width).
        keys: (batch, heads, keys, width).
        values: (batch, heads, keys, width).
        heads_at_once: How many heads are worked on together.
    """

    kind = "attention"
    supports_classes = True
    queries: Tensor
    keys: Tensor
    values: Tensor

    def __init__(
        self,
        scale: float,
        mask: Tensor | None,
        heads_at_once: int,
        queries_at_once: int | None = None,
        *,
        causal: bool = False,
    ) -> None:
        super().__init__(name="attention")
        self.heads_at_once = heads_at_once
        self._queries_at_once = queries_at_once
        self._scale = scale
        self._mask = mask
        self._causal = causal
        self._first_query = 0  # its number, where queries are some of all

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        self.queries, self.keys, self.values = (x.detach() for x in inputs)
        outputs = [
            self._attend(heads, *(x[:, heads] for x in (self.queries, self.keys, self.values)))
            for heads in self.head_chunks()
        ]
        self.output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
        return self.output

    def _attend(self, heads: slice, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The output for some heads, by torch's own kernels."""
        every = self._first_query == 0 and queries.shape[-2] == keys.shape[-2]
        whole = self._causal and every
        mask = None if whole else self._make_mask(heads)
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=whole, scale=self._scale
        )

    def _make_mask(self, heads: slice) -> Tensor | None:
        if self._causal:
            size = self.queries.shape[-2], self.keys.shape[-2]
            ones = torch.ones(size, dtype=torch.bool, device=self.queries.device)
            return ones.tril_(self._first_query)
        mask = self._mask
        if mask is not None and mask.dim() > 2 and mask.shape[-3] > 1:
            mask = mask[..., heads, :, :]
        return mask

    def head_chunks(self, classes: int = 1) -> list[slice]:
        """Heads that are worked on together, for so many classes at once."""
        heads, step = self.queries.shape[1], max(1, self.heads_at_once // classes)
        return [slice(at, min(at + step, heads)) for at in range(0, heads, step)]

    def iterate_queries(self) -> Iterator[tuple[slice, Tensor]]:
        """The maps of all heads, (batch, heads, some queries, keys), some queries at a time."""
        heads, queries = self.queries.shape[1:3]
        step = max(1, self.heads_at_once * (self._queries_at_once or queries) // heads)
        for start in range(0, queries, step):
            length = min(step, queries - start)
            _, softmax, _ = self.select_queries(start, length).split_operations(slice(0, heads))
            yield slice(start, start + length), softmax.output

    def split_operations(self, heads: slice) -> tuple[MatMul, Softmax, MatMul]:
        """The operations that it is made of, for some heads: scores, softmax, product."""
        scores, softmax, product = MatMul(), Softmax(self._scale, self._make_mask(heads)), MatMul()
        scores.forward(self.queries[:, heads], self.keys[:, heads].mT)
        product.keep(softmax.forward(scores.output), self.values[:, heads], self.output[:, heads])
        product.reader_count = self.reader_count
        for operation in (scores, softmax, product):
            operation.guard, operation.batch = self.guard, self.batch
        softmax.in_attention = product.in_attention = product.a_is_attention_map = True
        return scores, softmax, product

    @override
    def gradient(self, output: Tensor) -> Values:
        chunks: list[Values] = []
        for heads in self.head_chunks():
            with torch.enable_grad():
                kept = (self.queries, self.keys, self.values)
                inputs = [x[:, heads].detach().requires_grad_() for x in kept]
                attended = self._attend(heads, *inputs)
            of_classes: list[Values] = [
                torch.autograd.grad(attended, inputs, value, retain_graph=True)
                for value in self._split_classes(output, heads)
            ]
            chunks.append(_stack_classes(of_classes, output.dim() > self.output.dim()))
        return tuple(_join(chunk, _cat_heads) for chunk in zip(*chunks, strict=True))

    def propagate(self, output: Tensor, read: Callable[[Operation, Tensor], Values]) -> Values:
        """Values of queries, keys and values, by how they pass the three operations.

        Those of queries and keys are None if nothing passes the softmax.
        """
        queries = self.queries.shape[-2]
        step, several = self._queries_at_once or queries, output.dim() > self.output.dim()
        parts = [
            self.select_queries(start, min(step, queries - start))
            for start in range(0, queries, step)
        ]
        values = torch.split(output, step, -2)
        chunks: list[Values] = []
        for heads in self.head_chunks():
            rows = [
                part._propagate_heads(value, heads, read, several)
                for part, value in zip(parts, values, strict=True)
            ]
            to_queries, to_keys, to_values = zip(*rows, strict=True)
            rows_joined = _join(to_queries, _cat_rows), _join(to_keys, _add), _join(to_values, _add)
            chunks.append(rows_joined)
        return tuple(_join(chunk, _cat_heads) for chunk in zip(*chunks, strict=True))

    def _propagate_heads(
        self,
        output: Tensor,
        heads: slice,
        read: Callable[[Operation, Tensor], Values],
        several: bool,
    ) -> Values:
        scores, softmax, product = self.split_operations(heads)
        of_classes: list[Values] = []
        for value in self._split_classes(output, heads):
            to_map, to_values = read(product, value)
            (to_scores,) = (None,) if to_map is None else read(softmax, to_map)
            del to_map
            to_queries, to_keys = (None, None) if to_scores is None else read(scores, to_scores)
            of_classes.append((to_queries, None if to_keys is None else to_keys.mT, to_values))
        return _stack_classes(of_classes, several)

    def _split_classes(self, value: Tensor, heads: slice) -> list[Tensor]:
        """The value of each class at some heads of the output."""
        every = value if value.dim() > self.output.dim() else value[None]
        return [select_heads(one, heads) for one in every]

    def select_queries(self, start: int, length: int) -> ChunkedAttention:
        """The same attention of some queries alone."""
        if length == self.queries.shape[-2]:
            return self
        small = self._narrow(("queries", "output"), -2, start, length)
        small._first_query = self._first_query + start
        if self._mask is not None and self._mask.dim() > 1 and self._mask.shape[-2] > 1:
            small._mask = self._mask.narrow(-2, start, length)
        return small

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        if dim != -2:
            return None
        return self.select_queries(start, length), (self.queries.shape, None, None)


def _stack_classes(of_classes: list[Values], several: bool) -> Values:
    """Values of all classes, which are the first dimension if there are several."""
    return tuple(
        _join(part, torch.stack) if several else part[0] for part in zip(*of_classes, strict=True)
    )


def _join(parts: Sequence[Tensor | None], join: Callable[[list[Tensor]], Tensor]) -> Tensor | None:
    """One value of several; None if a rule gave none for a part."""
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    return found[0] if len(found) == 1 and join is not torch.stack else join(found)


def _cat_heads(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, -3)


def _cat_rows(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, -2)


def _add(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)
