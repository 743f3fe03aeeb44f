"""Skip connections: the sums of which one term is what another one is computed from."""

from __future__ import annotations

from collections.abc import Iterator

from torch.autograd.graph import GradientEdge, Node

from whence._util.torch_internals import CLONE, COPY
from whence.tracing.graph.nodes import NodeGraph, is_scaling, operation_of
from whence.tracing.graph.sums import find_stack, is_addition
from whence.tracing.ops.base import Operation, is_norm
from whence.tracing.ops.products import Linear
from whence.tracing.ops.skip_addition import SkipAddition, SkipSum
from whence.tracing.trace import Trace

# What makes a branch of what it reads. Scaling, rotating and element-wise functions do not: a
# rotary embedding and a GELU that are written out add up such terms, too.
_MAKE_A_BRANCH = ("linear", "matmul", "attention")


def mark_skips(trace: Trace) -> None:
    """Tell the operations of a trace which of them add up skip connections, once.

    A sum is one if a term of it is, but for routing and scaling by constants, what another term is
    computed from: through a linear map, a product of matrices, an attention or a norm. A sum of
    several terms counts as one, in whatever order it is added up.
    """
    if trace.has_marked_skips:
        return
    trace.has_marked_skips = True
    graph = NodeGraph(trace) if trace.structure is None else trace.structure.graph
    finder = _Finder(trace, graph)
    for entry in trace.entries:
        node = entry.output.node
        is_whole = node in graph and is_addition(graph, node) and not finder.is_partial(node)
        if is_whole and finder.is_skip(node):
            _mark(finder, node, True, SkipSum())


def _mark(finder: _Finder, node: Node, is_last: bool, shared: SkipSum) -> Operation:
    """Mark an operation that adds up a skip connection, and those that make its partial sums."""
    operation = finder.find_operation(node)
    partial = tuple(
        None if inner is None else _mark(finder, inner, False, shared)
        for inner in map(finder.find_partial, finder.list_inputs(node))
    )
    operation.skip = SkipAddition(partial, is_last, shared)
    return operation


class _Finder:
    """Finds skip connections in a graph."""

    def __init__(self, trace: Trace, graph: NodeGraph) -> None:
        self._inputs = {entry.operation: entry.inputs for entry in trace.entries}
        self._graph = graph

    def find_operation(self, node: Node) -> Operation:
        """The operation of a node that adds terms."""
        operation = operation_of(node)
        if operation is None:
            raise TypeError(f"{node.name()} is no recorded operation.")
        return operation

    def list_inputs(self, node: Node) -> tuple[GradientEdge, ...]:
        """What the operation of an addition reads: two terms, or a stack of them."""
        return self._inputs[self.find_operation(node)]

    def find_partial(self, edge: GradientEdge) -> Node | None:
        """The addition that made a partial sum, which another addition reads at a place."""
        node = self._pass_copies(edge.node)
        return node if is_addition(self._graph, node) and self.is_partial(node) else None

    def is_partial(self, node: Node) -> bool:
        """Whether only an addition reads a sum, element by element.

        What linear maps of the same tensor add up to, as a weight and its low-rank update, is one
        linear map, and a term like any other.
        """
        graph = self._graph
        readers = graph.readers[node]
        if len(readers) != 1 or not is_addition(graph, readers[0]):
            return False
        if find_stack(graph, readers[0]) is not None:
            return False
        inner, outer = self.find_operation(node), self.find_operation(readers[0])
        read = [self._pass_copies(edge.node) for edge in self.list_inputs(readers[0])]
        if inner.output.shape != outer.output.shape or node not in read:
            return False
        mapped = [self._find_mapped(edge) for edge in self.list_inputs(node)]
        return None in mapped or len(set(mapped)) > 1

    def _pass_copies(self, node: Node) -> Node:
        """The node whose output another one only copies, as a sum that is added to in place."""
        while node.name() in (CLONE, COPY) and len(self._graph.sources(node)) == 1:
            node = self._graph.sources(node)[0].node
        return node

    def _find_mapped(self, edge: GradientEdge) -> Node | None:
        """What a term is a linear map of, that nothing else reads; None if it is no such map."""
        graph, node, is_mapped = self._graph, edge.node, False
        while True:
            operation, sources = operation_of(node), graph.sources(node)
            is_linear = isinstance(operation, Linear)
            passes = is_linear or (operation is not None and is_scaling(operation))
            passes &= len(graph.readers[node]) == 1
            if not (passes or graph.is_routing(node)) or len(sources) != 1:
                return node if is_mapped else None
            is_mapped |= is_linear
            node = sources[0].node

    def is_skip(self, node: Node) -> bool:
        """Whether a sum adds what something is computed from, and what is computed from that."""
        terms = list(self._list_terms(node))
        return any(
            other is not term and self._makes_branch(origin, other)
            for term in terms
            for origin in self._list_origins(term)
            for other in terms
        )

    def _list_terms(self, node: Node) -> Iterator[GradientEdge]:
        stack = find_stack(self._graph, node)
        if stack is not None:
            yield from self._graph.sources(stack)
            return
        for edge in self.list_inputs(node):
            inner = self.find_partial(edge)
            if inner is None:
                yield edge
            else:
                yield from self._list_terms(inner)

    def _list_origins(self, term: GradientEdge) -> Iterator[GradientEdge]:
        """A term, and what it is but for routing, scaling, and what else was added to it."""
        graph = self._graph
        waiting, seen = [term], {term}
        while waiting:
            edge = waiting.pop(0)
            yield edge
            operation, sources = operation_of(edge.node), graph.sources(edge.node)
            if operation is None:
                passes = graph.is_routing(edge.node) and len(sources) == 1
            else:
                passes = is_scaling(operation) or is_addition(graph, edge.node)
                stack = find_stack(graph, edge.node)
                sources = sources if stack is None else graph.sources(stack)
            more = [source for source in sources if passes and source not in seen]
            seen.update(more)
            waiting += more

    def _makes_branch(self, start: GradientEdge, end: GradientEdge) -> bool:
        """Whether a branch that begins at one place ends at another."""
        graph = self._graph
        waiting, seen = [(end, False)], {(end, False)}
        while waiting:
            edge, is_branch = waiting.pop()
            if not graph.is_upstream(start.node, edge.node):
                continue
            if edge == start:
                if is_branch:
                    return True
                continue
            operation = operation_of(edge.node)
            is_branch |= operation is not None and (
                operation.kind in _MAKE_A_BRANCH or is_norm(operation)
            )
            more = {(source, is_branch) for source in graph.sources(edge.node)} - seen
            seen |= more
            waiting += more
        return False
