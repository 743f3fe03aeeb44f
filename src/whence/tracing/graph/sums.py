"""Sums: where an attention meets its skip connection, or whatever else leads around it."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from torch.autograd.graph import GradientEdge, Node

from whence._util.torch_internals import STACK, output_metadata
from whence.tracing.graph.nodes import NodeGraph, is_scaling, operation_of
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.ops.base import Operation
from whence.tracing.ops.products import Linear
from whence.tracing.ops.sums import Add
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
            if operation is None or not is_addition(graph, reader):
                continue
            top = find_whole_sum(graph, reader)
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
            if operation is None or not is_addition(graph, reader):
                continue
            top = find_whole_sum(graph, reader)
            terms = graph.sources(find_stack(graph, top) or top)
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


def is_addition(graph: NodeGraph, node: Node) -> bool:
    """Whether a node adds terms: two of them, or a stack of several."""
    operation = operation_of(node)
    return isinstance(operation, Add) or find_stack(graph, node) is not None


def find_stack(graph: NodeGraph, node: Node) -> Node | None:
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


def find_whole_sum(graph: NodeGraph, addition: Node) -> Node:
    """The last addition of a sum of several terms: only additions read the partial sums."""
    while True:
        readers = graph.readers[addition]
        if len(readers) != 1 or not is_addition(graph, readers[0]):
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
    stack = find_stack(graph, addition)
    waiting = [(edge, False) for edge in graph.sources(addition if stack is None else stack)]
    while waiting:
        edge, gated = waiting.pop()
        operation = operation_of(edge.node)
        if edge.node is product:
            continue
        if graph.is_upstream(edge.node, product):
            found.append((edge, gated))
        elif is_addition(graph, edge.node):
            stack = find_stack(graph, edge.node)
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
