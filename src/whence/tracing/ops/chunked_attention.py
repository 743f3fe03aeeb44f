"""Softmax attention as one operation that keeps no attention maps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from whence._util.torch_attention import is_fused_attention, run_attention_node
from whence._util.torch_internals import softmax_backward
from whence.tracing.ops.base import (
    Activations,
    Narrowed,
    Operation,
    Values,
    shares_memory,
    to_shapes,
)
from whence.tracing.ops.products import MatMul, make_contiguous, matmul
from whence.tracing.ops.propagation import Propagation, Read, is_same, split_classes
from whence.tracing.ops.softmax import Softmax, overwrite_and_normalize


class _Scores(MatMul):
    """Scaled scores of queries and keys: C = scale A B.

    The factor is that of the far smaller queries in the forward pass, and of the gradients. Rules
    for relevance, which a factor does not change, see A B; it is computed when they ask for it.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self._scale = scale

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        queries, keys = inputs
        self.a, self.b = make_contiguous(queries.detach()), make_contiguous(keys.detach())
        return matmul(self.a * self._scale, self.b)

    def __getattr__(self, name: str) -> Tensor:
        if name != "output":
            raise AttributeError(name)
        self.output = matmul(self.a, self.b)
        return self.output

    @override
    def gradient(self, output: Tensor) -> Values:
        found = super().gradient(output)
        return tuple(None if one is None else one * self._scale for one in found)


class _ChunkSoftmax(Softmax):
    """The softmax of scores of some queries, which it may overwrite.

    Args:
        mask: A boolean or additive mask, if there is one.
        first_query: The number of the first query, if none attends to a later token.
    """

    def __init__(self, mask: Tensor | None, first_query: int | None) -> None:
        super().__init__(1.0, mask)
        self._mask = mask
        self._first_query = first_query

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        scores = inputs[0].detach()
        self.inputs = (scores,)
        if self._first_query is not None:
            later = scores[..., self._first_query :]
            ones = torch.ones(later.shape[-2:], dtype=torch.bool, device=later.device)
            later.masked_fill_(ones.triu_(1), -math.inf)
        if self._mask is None:
            self.output = torch.softmax(scores, -1)
        else:
            self.output = overwrite_and_normalize(scores, self._mask)
        return self.output

    @override
    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (softmax_backward(cotangent, self.output.expand_as(cotangent), -1),)


class ChunkedAttention(Operation):
    """Softmax attention as one operation that keeps no maps: they are computed again, in chunks.

    This is for long sequences, whose maps would fill the memory. The output is that of torch's own
    kernels. Rules and methods get the three operations it is made of, for some queries at a time.

    Args:
        scale: The factor of the scores.
        mask: A boolean or additive mask, if there is one.
        queries_at_once: How many queries are worked on together.
        causal: Whether a token attends only to those up to itself, and there is no other mask.
        groups: How many heads in a row have the same keys and values.

    Attributes:
        has_maps: Whether maps are made of smaller inputs: what is read of them is read of maps here
            as well, so that numbers do not depend on the size.
        queries: (batch, heads, queries, width).
        keys: (batch, heads, keys, width).
        values: (batch, heads, keys, width).
    """

    kind = "attention"
    supports_classes = True
    activations = ("queries", "keys", "values", "output")
    constants = ("_mask", "_graph", "_last_read", "_propagated", "_shared")
    has_maps = True
    queries: Tensor
    keys: Tensor
    values: Tensor
    _graph: tuple[Tensor, ...] | None = None  # queries, keys, values and output, for autograd
    _last_read: tuple[Tensor, Tensor] | None = None
    _propagated: Propagation | None = None
    _shared: tuple[Tensor, Tensor] | None = None  # keys and values, once for each group of heads

    def __init__(
        self,
        scale: float,
        mask: Tensor | None,
        queries_at_once: int,
        *,
        causal: bool = False,
        groups: int = 1,
    ) -> None:
        super().__init__(name="attention")
        self.queries_at_once = queries_at_once
        self.groups = groups
        self._scale = scale
        self._mask = mask
        self._causal = causal
        self._first_query = 0  # its number, where queries are some of all

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        self.queries, self.keys, self.values = (x.detach() for x in inputs)
        graph = self._make_graph()
        self.output = graph[-1].detach()
        # A kernel of torch's own keeps no more than this does, but separate calls keep maps.
        self._graph = graph if is_fused_attention(graph[-1].grad_fn) else None
        return self.output

    def _make_graph(self) -> tuple[Tensor, ...]:
        kept = (self.queries, self.keys, self.values)
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in kept]
            return *inputs, self._attend(*inputs)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        whole = self._first_query == 0 and queries.shape[-2] == keys.shape[-2]
        causal = self._causal and whole
        mask = None if causal else self._make_mask()
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=causal, scale=self._scale
        )

    def _make_mask(self) -> Tensor | None:
        if not self._causal:
            return self._mask
        size = self.queries.shape[-2], self.keys.shape[-2]
        ones = torch.ones(size, dtype=torch.bool, device=self.queries.device)
        return ones.tril_(self._first_query)

    def split_queries(
        self, classes: int = 1, *, every_key: bool = True
    ) -> Iterator[tuple[slice, ChunkedAttention]]:
        """The same attention of some queries at a time.

        Args:
            classes: How many values of each are worked on; there are fewer queries at a time then.
            every_key: Whether to have the keys, too, that none of these queries attends to.
        """
        queries, step = self.queries.shape[-2], max(1, self.queries_at_once // classes)
        for start in range(0, queries, step):
            length = min(step, queries - start)
            part = self.select_queries(start, length)
            if not every_key:
                seen = self.find_seen_keys(start + length)
                part.keys, part.values = part.keys[..., seen, :], part.values[..., seen, :]
            yield slice(start, start + length), part

    def find_seen_keys(self, queries: int) -> slice:
        """The keys that may be attended to by so many queries at the beginning."""
        square = self.queries.shape[-2] == self.keys.shape[-2]
        return slice(0, queries) if self._causal and square else slice(None)

    def select_queries(self, start: int, length: int) -> ChunkedAttention:
        """The same attention of some queries alone."""
        small = self._narrow(("queries", "output"), -2, start, length)
        small._first_query = self._first_query + start
        small._graph = small._last_read = small._propagated = None
        if self._mask is not None and self._mask.dim() > 1 and self._mask.shape[-2] > 1:
            small._mask = self._mask.narrow(-2, start, length)
        return small

    def split_operations(self) -> tuple[MatMul, Softmax, MatMul]:
        """The operations that it is made of: scaled scores, softmax, product."""
        scores, product = _Scores(self._scale), MatMul()
        softmax = _ChunkSoftmax(self._mask, self._first_query if self._causal else None)
        weights = softmax.forward(scores.forward(self.queries, self.keys.mT))
        product.keep(weights, self.values, self.output)
        product.reader_count = self.reader_count
        for operation in (scores, softmax, product):
            operation.guard, operation.batch = self.guard, self.batch
        softmax.in_attention = product.in_attention = product.a_is_attention_map = True
        return scores, softmax, product

    @override
    def gradient(self, output: Tensor) -> Values:
        return self.scale_gradient(output, (1.0, 1.0, 1.0))

    def scale_gradient(self, output: Tensor, factors: tuple[float, float, float]) -> Values:
        """Gradients of queries, keys and values, each times a factor; None where that is 0.

        They come from torch's own kernels, which make no maps.
        """
        if not any(factors[:2]):
            to_values = self.read_back(output)
            return None, None, to_values if factors[2] == 1 else to_values * factors[2]
        *inputs, attended = self._graph or self._make_graph()
        every = [
            _find_gradients(attended, inputs, one)
            for one in split_classes(output, self.output.dim())
        ]
        several = output.dim() > self.output.dim()
        found = tuple(map(torch.stack, zip(*every, strict=True))) if several else every[0]
        return tuple(x if f == 1 else x * f for x, f in zip(found, factors, strict=True))

    def read_back(self, rows: Tensor) -> Tensor:
        """The product of the transposed maps and of rows, one for each query, without maps.

        For each key, it adds up the rows of all queries, each times its attention to the key. So it
        is also the gradient of the values, given that of the output.

        Args:
            rows: (..., queries, width), no wider than values; there may be classes before them.
        """
        known, found = self._last_read or (None, None)
        if known is not None and found is not None and is_same(known, rows):
            return found.reshape(*rows.shape[:-2], *found.shape[-2:])
        width = rows.shape[-1]
        *inputs, attended = self._graph or self._make_graph()
        leaf = inputs[-1]
        fitting = rows.to(leaf.dtype)
        if width < leaf.shape[-1]:
            fitting = F.pad(fitting, (0, leaf.shape[-1] - width))
        every = [
            _find_gradients(attended, inputs, one, of_values=True)[-1][..., :width]
            for one in split_classes(fitting, self.output.dim())
        ]
        found = torch.stack(every) if rows.dim() > self.output.dim() else every[0]
        if width == leaf.shape[-1]:
            self._last_read = rows, found
        return found

    def average_seen(self, values: Tensor) -> Tensor | None:
        """For each query, the mean over the keys that it may attend to; None if a mask decides.

        Args:
            values: (..., keys, width).
        """
        queries, keys = self.queries.shape[-2], self.keys.shape[-2]
        if self._causal and self._first_query == 0 and queries == keys:
            counts = torch.arange(1, keys + 1, dtype=values.dtype, device=values.device)
            # Along rows, torch adds up several times as fast on a GPU as down columns.
            return (values.mT.contiguous().cumsum(-1) / counts).mT
        if self._causal or self._mask is not None:
            return None
        return values.mean(-2, keepdim=True)

    @override
    def set_aside(self, *, with_sums: bool = False, unread: bool = False) -> None:
        if not unread:
            self._graph = self._last_read = self._propagated = self._shared = None
        super().set_aside(with_sums=with_sums, unread=unread)

    @override
    def take_over(self, computed: Activations) -> bool:
        takes = super().take_over(computed)
        if takes:
            self._graph = getattr(computed, "_graph", None)
            self._shared = None
        return takes

    # Heads that share keys and values ------------------------------------------------------------

    @property
    def shared_bytes(self) -> int:
        """How many bytes are kept in place of keys and values that are repeated."""
        return 0 if self._shared is None else sum(one.nbytes for one in self._shared)

    def free_repeated(self) -> None:
        """Keep keys and values once for each group of heads."""
        if "keys" not in vars(self):
            return  # all has been read of it
        if self._shared is None:
            keys, values = (x[:, :: self.groups] for x in (self.keys, self.values))
            # A copy also where one head is left, of which the view is contiguous.
            self._shared = keys.clone(), values.clone()
        for leaf in self._graph[1:3] if self._graph else ():
            leaf.data = leaf.data.new_empty(0)  # autograd's node has the leaf itself
        self.keys, self.values = to_shapes(self.keys), to_shapes(self.values)

    def restore_repeated(self) -> None:
        """Repeat the keys and values for all heads."""
        if self._shared is None or "keys" not in vars(self):
            return
        self.keys, self.values = (one.repeat_interleave(self.groups, 1) for one in self._shared)
        if self._graph:
            for leaf, value in zip(self._graph[1:3], (self.keys, self.values), strict=True):
                leaf.data = value

    @override
    def preserve(self, overwritten: Tensor) -> None:
        kept = (self.queries, self.keys, self.values, self.output)
        if any(shares_memory(x, overwritten) for x in kept):
            self._graph = self._last_read = None  # which would read what is written
        super().preserve(overwritten)

    def propagate(self, output: Tensor, read: Read) -> Values:
        """Values of queries, keys and values, by how they pass the three operations.

        Those of queries and keys are None if nothing passes the softmax.
        """
        known, self._propagated = self._propagated, None
        if known is not None and known.is_of(output, read):
            return known.find_values(output)
        found = self.begin_to_propagate(output, read)
        for rows, part in self.split_queries(every_key=False):
            found.add(rows, self.find_seen_keys(rows.stop), part.split_operations())
        return found.find_values(output)

    def begin_to_propagate(self, output: Tensor, read: Read) -> Propagation:
        """What adds up values of queries, keys and values over chunks of queries."""
        return Propagation((self.queries, self.keys, self.values), output, read)

    def keep(self, propagation: Propagation) -> None:
        """Keep what was propagated while maps were in memory, for when it is asked for."""
        self._propagated = propagation

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        if dim != -2:
            return None
        return self.select_queries(start, length), (self.queries.shape, None, None)


def _find_gradients(
    output: Tensor, inputs: list[Tensor], gradient: Tensor, *, of_values: bool = False
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys and values; or of the values alone, which are then the last."""
    found = run_attention_node(output, inputs, gradient)
    if found is not None:
        return found
    asked = inputs[-1:] if of_values else inputs
    return torch.autograd.grad(output, asked, gradient, retain_graph=True)
