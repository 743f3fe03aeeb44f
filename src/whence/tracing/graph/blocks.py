"""Blocks: each attention with its skip connection, and the feed-forward part with its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence.tracing.graph.nodes import NodeGraph, is_scaling, operation_of
from whence.tracing.graph.sums import SkipConnection, find_whole_sum, is_addition
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.ops.base import Operation
from whence.tracing.ops.function import Function, is_norm
from whence.tracing.ops.products import Linear
from whence.tracing.ops.sums import Add
from whence.tracing.trace import Trace


@dataclass
class Block:
    """One attention with its skip connection, and the feed-forward part downstream with its own.

    Attributes:
        sites: The attention sites; several where heads are computed one by one.
        skip_addition: The sum with the skip connection; in a parallel block, also with the
            feed-forward part.
        post_norm: The normalisation right after it, in models that normalise there (as BERT does).
        output: The operation whose output leaves the block.
        value_input_edge: Where in the graph that is what the values are computed from.
        input_edge: Where that is what enters the block and is added by the skip connection.
        input_reader: An operation that reads the input: its index, and which of its inputs it is.
            None if only routing reads it.
        find_value: Gives the value at a place of the graph.
    """

    sites: list[AttentionSite]
    skip_addition: Operation
    post_norm: Function | None
    output: Operation
    value_input_edge: GradientEdge
    input_edge: GradientEdge
    input_reader: tuple[int, int] | None
    find_value: Callable[[GradientEdge], Tensor]

    @cached_property
    def value_input(self) -> Tensor:
        """What the values are computed from."""
        return self.find_value(self.value_input_edge)

    @cached_property
    def input(self) -> Tensor:
        """What enters the block and is added by the skip connection."""
        return self.find_value(self.input_edge)

    @property
    def site(self) -> AttentionSite:
        """The first attention site."""
        return self.sites[0]


def make_block(
    trace: Trace,
    graph: NodeGraph,
    sites: list[AttentionSite],
    skip: SkipConnection,
    additions: set[Node],
    post_norm: bool,
) -> Block:
    """Make the block around a skip connection.

    Args:
        trace: The recorded forward pass.
        graph: Its nodes.
        sites: The attention sites of the block.
        skip: Their skip connection.
        additions: The sums of all skip connections.
        post_norm: Whether blocks normalise their sums.
    """
    norm = _find_only_norm(graph, trace, skip.addition) if post_norm else None
    output: Operation = norm or skip.addition
    feed_forward = _find_feed_forward(trace, graph, output, additions)
    if feed_forward is not None:
        output = feed_forward
        if norm is not None:
            output = _find_only_norm(graph, trace, feed_forward) or feed_forward
    value_edge = _find_value_input(trace, graph, sites[0], skip.input_edge)
    block = Block(
        sites=sites,
        skip_addition=skip.addition,
        post_norm=norm,
        output=output,
        value_input_edge=value_edge,
        input_edge=skip.input_edge,
        input_reader=graph.find_reader(skip.input_edge),
        find_value=graph.find_value,
    )
    if not trace.segments.has_freed:  # or values would be computed again that may not be wanted
        _ = block.input, block.value_input
    return block


def has_post_norm(
    trace: Trace, graph: NodeGraph, skips: list[SkipConnection], additions: set[Node]
) -> bool:
    """Whether blocks normalise their sums: a normalised sum enters another part of a block.

    The last block's sum may be normalised in any model, for the head.
    """
    entering = {skip.input_edge.node for skip in skips}
    for skip in skips:
        norm = _find_only_norm(graph, trace, skip.addition)
        if norm is not None and (
            trace.entries[norm.index].output.node in entering
            or _find_feed_forward(trace, graph, norm, additions) is not None
        ):
            return True
    return False


def _find_only_norm(graph: NodeGraph, trace: Trace, operation: Operation) -> Function | None:
    """The normalisation that alone reads an operation's output, if there is one."""
    readers = graph.readers[trace.entries[operation.index].output.node]
    only = operation_of(readers[0]) if len(readers) == 1 else None
    return only if isinstance(only, Function) and is_norm(only) else None


def _find_feed_forward(
    trace: Trace, graph: NodeGraph, entering: Operation, additions: set[Node]
) -> Operation | None:
    """The sum of what leaves an attention's part of a block, and a function of it."""
    start = trace.entries[entering.index].output.node
    readers = list(graph.readers[start])
    for reader in readers:
        operation = operation_of(reader)
        if operation is not None and is_scaling(operation):
            readers += graph.readers[reader]
        elif is_addition(graph, reader) and reader not in additions:
            whole = find_whole_sum(graph, reader)
            if whole not in additions and _adds_linear_map(graph, whole, start):
                return operation_of(whole)
    return None


def _adds_linear_map(graph: NodeGraph, addition: Node, start: Node) -> bool:
    """Whether a linear map lies between a place and a sum."""
    waiting, seen = [addition], {addition}
    while waiting:
        for source in graph.sources(waiting.pop()):
            node = source.node
            if node in seen or node is start or not graph.is_upstream(start, node):
                continue
            if isinstance(operation_of(node), Linear):
                return True
            seen.add(node)
            waiting.append(node)
    return False


def _find_value_input(
    trace: Trace, graph: NodeGraph, site: AttentionSite, block_input: GradientEdge
) -> GradientEdge:
    """What the first of the linear maps reads through which the values are made of the input.

    Where the values come from elsewhere, as in cross-attention, it is the last of these maps.
    """
    values = trace.entries[site.product.index].inputs[site.values_number]
    found, nearest = values, None
    waiting, seen = [values.node], set[Node]()
    while waiting:
        node = waiting.pop(0)
        if node in seen or node is block_input.node:
            continue
        seen.add(node)
        operation = operation_of(node)
        if isinstance(operation, Linear):
            edge = trace.entries[operation.index].inputs[0]
            nearest = nearest or edge
            if graph.is_upstream(block_input.node, node):
                found = edge
        if nearest is None or graph.is_upstream(block_input.node, node):
            waiting += [source.node for source in graph.sources(node)]
    return nearest if found is values and nearest is not None else found


def find_operations(
    trace: Trace, graph: NodeGraph, site: AttentionSite, addition: Operation | None
) -> list[Operation]:
    """Operations between the product of map and values and the sum, in their order.

    Without a sum, they are those up to the first linear map.
    """
    product = trace.entries[site.product.index].output.node
    if addition is None:
        return _find_projection(graph, product)
    top = trace.entries[addition.index].output.node
    between: set[Node] = set()
    waiting = list(graph.sources(top))
    while waiting:
        node = waiting.pop().node
        if node in between or node is product or not graph.is_upstream(product, node):
            continue
        between.add(node)
        waiting += graph.sources(node)
    ordered = map(operation_of, sorted(between, key=graph.number))
    return [one for one in ordered if one is not None and not isinstance(one, Add)]


def _find_projection(graph: NodeGraph, product: Node) -> list[Operation]:
    """Operations from a product up to the first linear map, while one alone reads another."""
    found: list[Operation] = []
    readers = graph.readers[product]
    while len(readers) == 1:
        operation = operation_of(readers[0])
        if operation is None:
            break
        found.append(operation)
        if isinstance(operation, Linear):
            break
        readers = graph.readers[readers[0]]
    return found
