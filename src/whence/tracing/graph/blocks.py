"""The blocks of a model: what surrounds each attention, found from the graph alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from whence.errors import WhenceError
from whence.rules.balanced import is_norm
from whence.tracing.graph.sites import AttentionSite
from whence.tracing.ops.attention import Attention
from whence.tracing.ops.operations import Add, Function, Linear, MatMul, Operation
from whence.tracing.trace import Trace


@dataclass
class Block:
    """One attention layer, the skip connection around it, and the feed-forward part behind.

    Attributes:
        site: The attention map.
        projection: Operations between the product with the values and the skip connection.
        joined: The addition of the skip connection.
        norm: The normalisation right behind it, in models that normalise there (as BERT does).
        leaving: The operation whose output leaves the block.
        attended: What the values are computed from, and its shape.
        entering: What enters the block and is added by the skip connection.
        entering_at: Where that is in the graph.
    """

    site: AttentionSite
    projection: list[Operation]
    joined: Add
    norm: Function | None
    leaving: Operation
    attended: Tensor
    attended_at: GradientEdge
    entering: Tensor
    entering_at: GradientEdge


def find_blocks(trace: Trace, pooled: bool = False) -> list[Block]:
    """The block around each attention map, nearest the input first.

    Args:
        trace: The recorded forward pass.
        pooled: Whether the last attention only pools tokens, and is none of the blocks.

    Raises:
        WhenceError: An attention has no skip connection around it.
    """
    links = Links(trace)
    found = []
    for site in trace.sites[: -1 if pooled else None]:
        way = _way_to_sum(links, site.product.index)
        if way is None:
            raise WhenceError(
                f"The attention in {site.where} has no skip connection around it that whence can "
                f"find, which this method needs. Methods that read the attention maps alone, such "
                f"as 'gae', work without."
            )
        found.append((site, way))
    sums = {way[-1] for _, way in found}
    return [_block(trace, links, site, way, sums) for site, way in found]


class Links:
    """Which operations read the output of which, looking through what only moves numbers."""

    def __init__(self, trace: Trace) -> None:
        self.steps = trace.steps
        self._copies = trace.copies
        self._behind: dict[Any, frozenset[int]] = {}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for step in trace.steps:
            for source in {i for edge in step.inputs for i in self.behind(edge.node)}:
                self.readers[source].append(step.operation.index)

    def behind(self, node: Any) -> frozenset[int]:
        """The nearest operations behind a node of the graph."""
        waiting = [node]
        while waiting:
            at = waiting[-1]
            operation = getattr(at, "operation", None)
            if at is None or at in self._behind:
                waiting.pop()
            elif operation is not None:
                self._behind[at] = frozenset((operation.index,))
            else:
                # What was overwritten as a whole comes first, and has no part in the result.
                sources = at.next_functions[at in self._copies :]
                nodes = [n for n, _ in sources if n is not None]
                unknown = [n for n in nodes if n not in self._behind]
                if unknown:
                    waiting += unknown
                else:
                    self._behind[at] = frozenset().union(*(self._behind[n] for n in nodes))
        return self._behind[node]


def _way_to_sum(links: Links, index: int) -> list[int] | None:
    """Operations from a product of map and values to the sum that ends the attention layer."""
    way = [index]
    while True:
        readers = links.readers[way[-1]]
        if len(readers) != 1:
            return None
        operation = links.steps[readers[0]].operation
        way.append(readers[0])
        if isinstance(operation, Add):
            return way
        if operation.kind not in ("linear", "pass"):
            return None


def _block(
    trace: Trace, links: Links, site: AttentionSite, way: list[int], sums: set[int]
) -> Block:
    step = trace.steps[way[-1]]
    joined = step.operation
    assert isinstance(joined, Add)
    from_attention = [way[-2] in links.behind(edge.node) for edge in step.inputs]
    skip = from_attention.index(False) if False in from_attention else 0
    norm = _norm_behind(links, joined)
    leaving: Operation = norm or joined
    for reader in links.readers[leaving.index]:
        feed_forward = links.steps[reader].operation
        if isinstance(feed_forward, Add) and reader not in sums:
            leaving = feed_forward
            if norm is not None:
                leaving = _norm_behind(links, feed_forward) or feed_forward
            break
    product = site.product
    values = trace.steps[product.index].inputs[site.values_number]
    linear = _linear_behind(links, values.node)
    at = values if linear is None else trace.steps[linear.index].inputs[0]
    return Block(
        site=site,
        projection=[trace.steps[i].operation for i in way[1:-1]],
        joined=joined,
        norm=norm,
        leaving=leaving,
        attended=_values(product) if linear is None else linear.x,
        attended_at=at,
        entering=joined.b if skip else joined.a,
        entering_at=step.inputs[skip],
    )


def _values(product: MatMul | Attention) -> Tensor:
    return product.values if isinstance(product, Attention) else product.b


def _norm_behind(links: Links, operation: Operation) -> Function | None:
    """The normalisation that alone reads an operation's output, if there is one."""
    readers = [links.steps[i].operation for i in links.readers[operation.index]]
    if len(readers) == 1 and is_norm(readers[0]) and isinstance(readers[0], Function):
        return readers[0]
    return None


def _linear_behind(links: Links, node: Any) -> Linear | None:
    """The projection that values come out of."""
    for index in links.behind(node):
        operation = links.steps[index].operation
        if isinstance(operation, Linear):
            return operation
    return None


def projected_values(trace: Trace, block: Block) -> Tensor:
    """What each head adds for each token it attends to fully: (batch, heads, keys, width).

    The values of one head are put in their place among zeros, and taken through the projection
    that joins the heads, without its bias.
    """
    values = block.site.values(trace.batch)
    linear = [operation for operation in block.projection if isinstance(operation, Linear)]
    if len(linear) != 1 or linear[0].weight.dim() != 2:
        raise WhenceError(
            f"The attention in {block.site.where} is not followed by a single projection that "
            f"joins its heads, which this method needs."
        )
    heads, width = values.shape[1], values.shape[3]
    weight = linear[0].weight
    if getattr(linear[0], "weight_first", False):
        raise WhenceError(f"The projection in {block.site.where} cannot be split into heads.")
    weight = weight if type(linear[0]) is Linear else weight.mT
    by_head = weight.reshape(weight.shape[0], heads, width)
    projected = torch.einsum("bhkd,whd->bhkw", values, by_head)
    for operation in block.projection[block.projection.index(linear[0]) + 1 :]:
        # Scaling by a constant, as LayerScale does.
        assert isinstance(operation, Function)
        scale = operation.vjp(torch.ones_like(operation.output))[0]
        row = scale.reshape(-1, scale.shape[-1])[0]
        if not torch.allclose(scale, row.expand_as(scale)):
            raise WhenceError(
                f"What follows the attention in {block.site.where} is not linear, as this method "
                f"needs it to be."
            )
        projected = projected * row
    return projected
