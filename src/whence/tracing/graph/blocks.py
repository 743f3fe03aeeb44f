"""Blocks: each attention with its skip connection, and the feed-forward part with its own."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence._util.torch_internals import STACK, output_metadata
from whence.tracing.graph.nodes import NodeGraph, is_scaling, operation_of
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.ops.base import Add, Function, Operation, is_norm
from whence.tracing.ops.products import Linear
from whence.tracing.trace import Trace

# Attention reads these, so that the branch of another attention ends there.
_ENDS_OF_A_BRANCH = ("matmul", "attention")


class SkipConnection(NamedTuple):
    """The sum in which an attention meets its skip connection.

    Attributes:
        addition: The operation that completes the sum, of any number of terms.
        input_edge: What enters the block: both the attention and the skip connection read it.
    """

    addition: Operation
    input_edge: GradientEdge


@dataclass
class Block:
    """One attention with its skip connection, and the feed-forward part downstream with its own.

    Attributes:
        sites: The attention sites; several where heads are computed one by one.
        skip_addition: The sum with the skip connection; in a parallel block, also with the
            feed-forward part.
        post_norm: The normalisation right after it, in models that normalise there (as BERT does).
        output: The operation whose output leaves the block.
        value_input: What the values are computed from.
        value_input_edge: Where that is in the graph.
        input: What enters the block and is added by the skip connection.
        input_edge: Where that is in the graph.
        input_reader: An operation that reads the input: its index, and which of its inputs it is.
            None if only routing reads it.
    """

    sites: list[AttentionSite]
    skip_addition: Operation
    post_norm: Function | None
    output: Operation
    value_input: Tensor
    value_input_edge: GradientEdge
    input: Tensor
    input_edge: GradientEdge
    input_reader: tuple[int, int] | None

    @property
    def site(self) -> AttentionSite:
        """The first attention site."""
        return self.sites[0]


# The skip connection -----------------------------------------------------------------------------


def find_skip(trace: Trace, graph: NodeGraph, site: AttentionSite) -> SkipConnection | None:
    """The sum downstream of an attention in which its block's input is a term.

    The term reaches the block's input, from which the attention is computed too, through nothing
    but routing and scaling by constants. If there is none, a gated term does as well, and last a
    term from the attention's own queries, keys or values.
    """
    product = trace.entries[site.product.index].output.node
    projections = _find_projections(trace, graph, site)
    seen = {product}
    waiting = [(graph.number(product), product)]
    weak: SkipConnection | None = None
    while waiting:
        _, node = heappop(waiting)
        for reader in graph.readers[node]:
            operation = operation_of(reader)
            if reader in seen or (operation and operation.kind in _ENDS_OF_A_BRANCH):
                continue
            seen.add(reader)
            heappush(waiting, (graph.number(reader), reader))
            if operation is None or not _is_addition(graph, reader):
                continue
            top = _find_whole_sum(graph, reader)
            whole = operation_of(top)
            terms = _find_block_inputs(graph, top, product)
            strong = [
                e for e, gated in terms if not gated and not _is_one_of(graph, e, projections)
            ]
            chosen = _choose_latest(graph, strong)
            if chosen is not None and whole is not None:
                return SkipConnection(whole, chosen)
            chosen = _choose_latest(graph, [edge for edge, _ in terms])
            if chosen is not None and whole is not None:
                weak = weak or SkipConnection(whole, chosen)
                if len(graph.readers[top]) > 1:  # it is a residual stream
                    return weak
    return weak


def find_sum(trace: Trace, graph: NodeGraph, site: AttentionSite) -> Operation | None:
    """The nearest sum downstream of an attention with a term that does not depend on it.

    It is that of the skip connection, or of one that is projected or pooled on its way.
    """
    product = trace.entries[site.product.index].output.node
    waiting, seen = [(graph.number(product), product)], {product}
    while waiting:
        _, node = heappop(waiting)
        for reader in graph.readers[node]:
            operation = operation_of(reader)
            if reader in seen or (operation and operation.kind in _ENDS_OF_A_BRANCH):
                continue
            seen.add(reader)
            heappush(waiting, (graph.number(reader), reader))
            if operation is None or not _is_addition(graph, reader):
                continue
            top = _find_whole_sum(graph, reader)
            terms = graph.sources(_find_stack(graph, top) or top)
            around = [one for one in terms if not graph.is_upstream(product, one.node)]
            return operation_of(top) if around else None
    return None


def _find_projections(trace: Trace, graph: NodeGraph, site: AttentionSite) -> set[Node]:
    """The linear maps next to an attention: those that queries, keys and values come out of."""
    found: set[Node] = set()
    waiting = list(graph.sources(trace.entries[site.product.index].output.node))
    seen: set[Node] = set()
    while waiting:
        for root in graph.find_roots(waiting.pop().node):
            if root in seen:
                continue
            seen.add(root)
            if isinstance(operation_of(root), Linear):
                found.add(root)
            else:
                waiting += graph.sources(root)
    return found


def _is_one_of(graph: NodeGraph, edge: GradientEdge, nodes: set[Node]) -> bool:
    return not graph.find_roots(edge.node).isdisjoint(nodes)


def _is_addition(graph: NodeGraph, node: Node) -> bool:
    """Whether a node adds terms: two of them, or a stack of several."""
    operation = operation_of(node)
    return isinstance(operation, Add) or _find_stack(graph, node) is not None


def _find_stack(graph: NodeGraph, node: Node) -> Node | None:
    """The stack of terms that a node sums over."""
    operation = operation_of(node)
    if operation is None or operation.kind != "sum":
        return None
    source, *_ = graph.sources(node)
    if source.node.name() != STACK:
        return None
    # A sum over another dimension than that of the stack adds other things.
    shapes = {
        tuple(output_metadata(term.node)[term.output_nr].shape)
        for term in graph.sources(source.node)
    }
    return source.node if shapes == {tuple(operation.output.shape)} else None


def _find_whole_sum(graph: NodeGraph, addition: Node) -> Node:
    """The last addition of a sum of several terms: only additions read the partial sums."""
    while True:
        readers = graph.readers[addition]
        if len(readers) != 1 or not _is_addition(graph, readers[0]):
            return addition
        sizes = {one.output.numel() for one in map(operation_of, (addition, readers[0])) if one}
        if len(sizes) > 1:  # some tokens of a complete sum are read
            return addition
        addition = readers[0]


def _find_block_inputs(
    graph: NodeGraph, addition: Node, product: Node
) -> list[tuple[GradientEdge, bool]]:
    """Terms of a sum that an attention depends on too, and whether they are gated."""
    found = []
    stack = _find_stack(graph, addition)
    waiting = [(edge, False) for edge in graph.sources(addition if stack is None else stack)]
    while waiting:
        edge, gated = waiting.pop()
        operation = operation_of(edge.node)
        if edge.node is product:
            continue
        if graph.is_upstream(edge.node, product):
            found.append((edge, gated))
        elif _is_addition(graph, edge.node):
            stack = _find_stack(graph, edge.node)
            waiting += [(e, gated) for e in graph.sources(edge.node if stack is None else stack)]
        elif operation is None and graph.is_routing(edge.node):
            sources = graph.sources(edge.node)
            waiting += [(source, gated) for source in sources if len(sources) == 1]
        elif operation is not None and is_scaling(operation):
            waiting += [(source, gated) for source in graph.sources(edge.node)]
        elif operation is not None and operation.kind == "product":
            waiting += [(source, True) for source in graph.sources(edge.node)]
    return found


def _choose_latest(graph: NodeGraph, edges: list[GradientEdge]) -> GradientEdge | None:
    """The one of some places that all others are upstream of, if there is one."""
    for edge in edges:
        if all(graph.is_upstream(other.node, edge.node) for other in edges):
            return edge
    return None


# The block ---------------------------------------------------------------------------------------


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
    return Block(
        sites=sites,
        skip_addition=skip.addition,
        post_norm=norm,
        output=output,
        value_input=graph.find_value(value_edge),
        value_input_edge=value_edge,
        input=graph.find_value(skip.input_edge),
        input_edge=skip.input_edge,
        input_reader=graph.find_reader(skip.input_edge),
    )


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
        elif _is_addition(graph, reader) and reader not in additions:
            whole = _find_whole_sum(graph, reader)
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


def find_operations(trace: Trace, graph: NodeGraph, block: Block) -> list[Operation]:
    """Operations between the product of map and values and the sum, in their order."""
    product = trace.entries[block.site.product.index].output.node
    top = trace.entries[block.skip_addition.index].output.node
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
