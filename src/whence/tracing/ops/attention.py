"""Softmax attention: its operations, and the sites where a map meets the values it weighs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node
from typing_extensions import override

from whence._util.torch_internals import PERMUTE, TRANSPOSE, T, softmax_backward
from whence.tracing.ops.base import Function, Narrowed, Operation, Values
from whence.tracing.ops.products import ConstantMatMul, Convolution, Linear, MatMul

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


# Sites ------------------------------------------------------------------------------------------

# How many nodes are looked through on the way from a product back to its softmax.
_SEARCH_LIMIT = 64


@dataclass
class AttentionSite:
    """One attention map of the forward pass, where it is multiplied with values.

    Attributes:
        weights: The factor of that product; part of the graph, so that it can be read here.
        product: The operation that multiplies it with the values.
        where: The module it was computed in.
        keys_first: Whether the factor is the map transposed, as in V^T A^T.
        heads_first: Whether heads come before samples in its leading dimensions.
        output: The output of attention that is one operation and keeps no map; part of the graph.
            The weights are then a shape without numbers.
    """

    weights: Tensor
    product: MatMul | ChunkedAttention
    where: str
    keys_first: bool = False
    heads_first: bool = False
    output: Tensor | None = None

    @property
    def graph_tensor(self) -> Tensor:
        """Where in the graph the site is read: at the map, or at the output if there is none."""
        return self.weights if self.output is None else self.output

    @property
    def values_number(self) -> int:
        """Which input of the product the values are."""
        if isinstance(self.product, ChunkedAttention):
            return 2
        return 0 if self.keys_first else 1

    @property
    def query_count(self) -> int:
        """The number of queries."""
        return self.weights.shape[-1 if self.keys_first else -2]

    @property
    def key_count(self) -> int:
        """The number of keys."""
        return self.weights.shape[-2 if self.keys_first else -1]

    def release(self) -> None:
        """Free the map; its shape stays known."""
        self.weights = torch.empty(self.weights.shape, device="meta")

    def split_values(self, batch: int) -> Tensor:
        """The values that the map weighs, as (batch, heads, keys, width of a head)."""
        if isinstance(self.product, ChunkedAttention):
            return self.product.values
        values = self.product.a.mT if self.keys_first else self.product.b
        values = values.expand(*self.weights.shape[:-2], *values.shape[-2:])
        leading = (-1, batch) if self.heads_first else (batch, -1)
        values = values.reshape(*leading, *values.shape[-2:])
        return values.transpose(0, 1) if self.heads_first else values

    def split_heads(self, value: Tensor, batch: int) -> Tensor:
        """The map, or a value read there, as (..., batch, heads, queries, keys)."""
        extra = value.shape[: value.dim() - self.weights.dim()]
        leading = (-1, batch) if self.heads_first else (batch, -1)
        value = value.reshape(*extra, *leading, *self.weights.shape[-2:])
        value = value.transpose(-4, -3) if self.heads_first else value
        return value.mT if self.keys_first else value


def find_head_order(
    sites: list[AttentionSite],
    batch: int,
    dependence: Callable[[AttentionSite], Tensor],
    look_at: Callable[[Tensor], bool | int | float],
) -> str:
    """Find which leading dimension of the maps is samples, and which is heads.

    Args:
        sites: The sites; `heads_first` is set.
        batch: Number of samples.
        dependence: Gradient, at a site, of all logits of the first sample.
        look_at: Gives the value of a tensor that decides what is done.

    Returns:
        A sentence if a map is not laid out as samples and heads, as in attention over windows;
        else an empty one.
    """
    for site in sites:
        leading = site.weights.shape[:-2]
        folded = len(leading) == 1 and leading[0] % batch == 0
        samples_first = folded or (len(leading) == 2 and leading[0] == batch)
        heads_first = folded or (len(leading) == 2 and leading[1] == batch)
        if heads_first and batch > 1 and leading != (batch,):
            touched = dependence(site).flatten(-2).any(-1)
            # The logits of the first sample do not depend on the maps of others.
            samples_first &= not look_at(touched.reshape(batch, -1)[1:].any())
            heads_first &= not look_at(touched.reshape(-1, batch)[:, 1:].any())
        if not samples_first and not heads_first:
            return (
                f"The attention in {site.where} has maps of shape {tuple(site.weights.shape)} for "
                f"{batch} sample(s), not (batch, heads, queries, keys): attention over windows or "
                f"groups cannot be explained yet. Methods that need only the input, such as "
                f"'input_x_gradient', work."
            )
        site.heads_first = not samples_first
    return ""


def find_upstream_softmax(tensor: Tensor) -> Operation | None:
    """The softmax of scores upstream of a tensor, through what only moves, scales or gates it.

    The weights of experts are none: their softmax is over what a linear map puts out.
    """
    for node, operation in _iterate_nodes(tensor.grad_fn, ("pass", "product", "quotient")):
        if operation.name == SOFTMAX:
            return None if _chooses_features(node, operation) else operation
    return None


def _chooses_features(softmax: Node, operation: Operation) -> bool:
    """Whether a softmax is over the features of one token, which a linear map puts out."""
    node: Node | None = softmax
    while node is not None and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
        upstream: Operation | None = getattr(node, "operation", None)
        if upstream is not None and upstream.kind != "pass":
            features = isinstance(upstream, Linear) and not isinstance(upstream, Convolution)
            constant_first = isinstance(upstream, ConstantMatMul) and upstream.weight_first
            over_last = isinstance(operation, Function) and operation.mixed_dims == 1
            return features and not constant_first and over_last
        if upstream is None and node is not None and node.name() in (TRANSPOSE, PERMUTE, T):
            return False
    return False


def is_made_of_patches(tensor: Tensor) -> bool:
    """Whether a tensor is the output of a convolution that was only moved about since."""
    upstream = list(_iterate_upstream(tensor.grad_fn, ()))
    return bool(upstream) and all(isinstance(operation, Convolution) for operation in upstream)


def reads_matrix_product(softmax: Node) -> bool:
    """Whether the input of a softmax, given by its node, is made of a product such as Q K^T."""
    return any(
        operation.kind == "matmul"
        for node, _ in softmax.next_functions
        for operation in _iterate_upstream(node, ("pass", "add"))
    )


def _iterate_upstream(node: Node | None, through: tuple[str, ...]) -> Iterator[Operation]:
    """Operations upstream of a node, nearest first, through some kinds and all routing."""
    return (operation for _, operation in _iterate_nodes(node, through))


def _iterate_nodes(node: Node | None, through: tuple[str, ...]) -> Iterator[tuple[Node, Operation]]:
    """The same with their nodes."""
    waiting, seen = [node], set[Node]()
    while waiting and len(seen) < _SEARCH_LIMIT:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        operation: Operation | None = getattr(node, "operation", None)
        if operation is not None:
            yield node, operation
            if operation.kind not in through:
                continue
        waiting.extend(upstream for upstream, _ in node.next_functions)
