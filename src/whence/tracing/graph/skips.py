"""Skip connections: the sums of which one term is what another one is computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.autograd.graph import GradientEdge, Node

from whence._util.torch_internals import CLONE, saved_dim
from whence.tracing.graph.nodes import NodeGraph, is_scaling, operation_of
from whence.tracing.graph.sums import find_stack, is_addition
from whence.tracing.ops.base import Operation
from whence.tracing.ops.function import is_norm
from whence.tracing.ops.sums import SkipAddition, SkipSum
from whence.tracing.trace import Trace

# What makes a branch of what it reads. Scaling, rotating and element-wise functions do not: a
# rotary embedding and a GELU that are written out add up such terms, too.
_MAKE_A_BRANCH = ("linear", "matmul", "attention")


def mark_skips(trace: Trace) -> None:
    """Tell the operations of a trace which of them add up skip connections, once.

    A sum is one if a summand of it is, but for routing and scaling by constants, what another one
    is computed from: through a linear map, a product of matrices, an attention or a norm. Its terms
    are the summands of that kind, all branches with attention together, and all without. So it does
    not matter how a sum is added up, nor whether heads, experts or updates of a weight are added
    up in their branch or with all else.
    """
    if trace.has_marked_skips:
        return
    trace.has_marked_skips = True
    graph = NodeGraph(trace) if trace.structure is None else trace.structure.graph
    finder = _Finder(trace, graph)
    for entry in trace.entries:
        node = entry.output.node
        if node in graph and is_addition(graph, node) and not finder.is_partial(node):
            terms = finder.find_terms(node)
            if terms:
                _mark(finder, node, terms, SkipSum(1 + max(terms.values())))


def _mark(
    finder: _Finder,
    node: Node,
    terms: dict[GradientEdge, int],
    shared: SkipSum,
    is_last: bool = True,
) -> Operation:
    """Mark an operation that adds up a skip connection, and those that make its partial sums."""
    summands: list[int | Operation] = []
    for edge in finder.list_summands(node):
        inner = finder.find_partial(edge)
        if inner is None:
            summands.append(terms[edge])
        else:
            summands.append(_mark(finder, inner, terms, shared, is_last=False))
    operation = finder.find_operation(node)
    operation.skip = SkipAddition(tuple(summands), is_last, shared, finder.find_stack_dim(node))
    return operation


class _Finder:
    """Finds skip connections in a graph."""

    def __init__(self, trace: Trace, graph: NodeGraph) -> None:
        self._inputs = {entry.operation: entry.inputs for entry in trace.entries}
        self._copies = trace.copies
        self._graph = graph

    def find_operation(self, node: Node) -> Operation:
        """The operation of a node that adds."""
        operation = operation_of(node)
        if operation is None:
            raise TypeError(f"{node.name()} is no recorded operation.")
        return operation

    def list_summands(self, node: Node) -> list[GradientEdge]:
        """What the operation of an addition adds: two tensors, or those of a stack."""
        stack = find_stack(self._graph, node)
        if stack is not None:
            return self._graph.sources(stack)
        return list(self._inputs[self.find_operation(node)])

    def find_stack_dim(self, node: Node) -> int | None:
        """The dimension of the stack that an addition adds up; None if it adds two tensors."""
        stack = find_stack(self._graph, node)
        return None if stack is None else saved_dim(stack)

    def find_partial(self, edge: GradientEdge) -> Node | None:
        """The addition that made a partial sum, which another addition reads at a place."""
        node = self._pass_copies(edge)
        return node if is_addition(self._graph, node) and self.is_partial(node) else None

    def is_partial(self, node: Node) -> bool:
        """Whether only another addition reads a sum, element by element."""
        graph = self._graph
        readers = graph.readers[node]
        if len(readers) != 1 or not is_addition(graph, readers[0]):
            return False
        if find_stack(graph, readers[0]) is not None:
            return False
        inner, outer = self.find_operation(node), self.find_operation(readers[0])
        read = [self._pass_copies(edge) for edge in self.list_summands(readers[0])]
        as_it_is = read.count(node) == 1 and (read[0] is node or getattr(outer, "scale", 1) == 1)
        return as_it_is and inner.output.shape == outer.output.shape

    def _pass_copies(self, edge: GradientEdge) -> Node:
        """The node that made what is only a copy at a place, as of a sum that is added to."""
        while True:
            if edge in self._copies:
                edge = self._copies[edge]
            elif edge.node.name() == CLONE:
                (edge,) = self._graph.sources(edge.node)
            else:
                return edge.node

    def find_terms(self, node: Node) -> dict[GradientEdge, int]:
        """The number of the term that each summand belongs to; none if it is no skip connection."""
        summands = list(dict.fromkeys(self._list_all_summands(node)))
        origins = {one: found for one in summands if (found := self._find_origin(one, summands))}
        if not origins:
            return {}
        start = max(origins.values(), key=lambda edge: self._graph.number(edge.node))
        numbers: dict[object, int] = {}
        terms = {}
        for one in summands:
            kind: object = one
            if one not in origins and self._makes_branch(start, one, _is_branch):
                kind = self._makes_branch(start, one, _is_attention)
            terms[one] = numbers.setdefault(kind, len(numbers))
        return terms

    def _list_all_summands(self, node: Node) -> Iterator[GradientEdge]:
        for edge in self.list_summands(node):
            inner = self.find_partial(edge)
            yield from (edge,) if inner is None else self._list_all_summands(inner)

    def _find_origin(
        self, summand: GradientEdge, summands: list[GradientEdge]
    ) -> GradientEdge | None:
        """What a summand is, but for routing and scaling, that begins a branch of another one."""
        for origin in self._list_origins(summand):
            others = (one for one in summands if one != summand)
            if any(self._makes_branch(origin, other, _is_branch) for other in others):
                return origin
        return None

    def _list_origins(self, summand: GradientEdge) -> Iterator[GradientEdge]:
        """A summand, and what it is but for routing, scaling, and what else was added to it."""
        graph = self._graph
        waiting, seen = [summand], {summand}
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

    def _makes_branch(
        self, start: GradientEdge, end: GradientEdge, makes: Callable[[Operation], bool]
    ) -> bool:
        """Whether there is a way from one place to another through an operation of some kind."""
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
            is_branch |= operation is not None and makes(operation)
            more = {(source, is_branch) for source in graph.sources(edge.node)} - seen
            seen |= more
            waiting += more
        return False


def _is_branch(operation: Operation) -> bool:
    return operation.kind in _MAKE_A_BRANCH or is_norm(operation)


def _is_attention(operation: Operation) -> bool:
    return operation.in_attention or operation.kind == "attention"
