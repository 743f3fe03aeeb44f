"""Attention sites: where a map meets the values it weighs, and how its dimensions are laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from whence.errors import WhenceError
from whence.tracing.ops.attention import SOFTMAX, ChunkedAttention
from whence.tracing.ops.base import Operation
from whence.tracing.ops.products import Convolution, MatMul

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
) -> None:
    """Find which leading dimension of the maps is samples, and which is heads.

    Args:
        sites: The sites; `heads_first` is set.
        batch: Number of samples.
        dependence: Gradient, at a site, of all logits of the first sample.
        look_at: Gives the value of a tensor that decides what is done.

    Raises:
        WhenceError: A map is not laid out as samples and heads, as in attention over windows.
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
            raise WhenceError(
                f"The attention in {site.where} has maps of shape {tuple(site.weights.shape)} for "
                f"{batch} sample(s), not (batch, heads, queries, keys): attention over windows or "
                f"groups cannot be explained yet."
            )
        site.heads_first = not samples_first


def find_upstream_softmax(tensor: Tensor) -> Operation | None:
    """The softmax upstream of a tensor, through what only moves, scales or gates it."""
    for operation in _iterate_upstream(tensor.grad_fn, ("pass", "product", "quotient")):
        if operation.name == SOFTMAX:
            return operation
    return None


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
    waiting, seen = [node], set[Node]()
    while waiting and len(seen) < _SEARCH_LIMIT:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        operation: Operation | None = getattr(node, "operation", None)
        if operation is not None:
            yield operation
            if operation.kind not in through:
                continue
        waiting.extend(upstream for upstream, _ in node.next_functions)
