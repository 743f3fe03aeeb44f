"""The autograd nodes between logits and inputs: which is upstream of which, and who reads whom."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence._util import torch_internals as internals
from whence._util.torch_internals import output_metadata, run_node
from whence.errors import WhenceError
from whence.tracing.ops.base import Operation
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import Linear, MatMul
from whence.tracing.ops.sums import Add, Shift
from whence.tracing.trace import Trace

_MOVES = frozenset(
    (
        *(internals.CLONE, internals.PERMUTE, internals.RESHAPE_ALIAS, internals.SQUEEZE),
        *(internals.T, internals.TRANSPOSE, internals.UNSAFE_VIEW, internals.UNSQUEEZE),
        internals.VIEW,
    )
)
_NOTHING: frozenset[Node] = frozenset()
_SCALINGS = ("mul", "multiply", "div", "divide", "true_divide")


class NodeGraph:
    """All nodes that the target depends on.

    A node either performs a recorded operation, or hides what it does, or only moves numbers about
    (routing). Parts of the model that the target does not depend on are not in the graph.

    Attributes:
        readers: For each node that is no routing, those that read its output, through routing, in
            the order of computation.
    """

    def __init__(self, trace: Trace) -> None:
        # A pass that was recorded from some operation on has no entries of those before it.
        self._entries = {entry.operation.index: entry for entry in trace.entries}
        self._overwrites, self._refused = trace.overwrites, trace.refused
        self._segments = trace.segments
        self._numbers: dict[Node, int] = {}
        self._sources: dict[Node, list[GradientEdge]] = {}
        self._upstream: dict[Node, int] = {}  # a bit for each node upstream, and for itself
        self._roots: dict[Node, frozenset[Node]] = {}
        self._values: dict[GradientEdge, tuple[int, int]] = {}
        self._movers: dict[GradientEdge, list[Node]] = defaultdict(list)
        self.readers: dict[Node, list[Node]] = defaultdict(list)
        for top in trace.tops:
            if top not in self._numbers:
                for node in self._sort(top):
                    self._add(node)

    def _sort(self, top: Node) -> Iterator[Node]:
        """A node and all upstream of it that are not known, each after all upstream of it."""
        seen = {top, *self._numbers}
        path = [(top, iter(self.sources(top)))]
        while path:
            node, sources = path[-1]
            for edge in sources:
                source = edge.node
                if source not in seen:
                    seen.add(source)
                    path.append((source, iter(self.sources(source))))
                    break
            else:
                path.pop()
                yield node

    def _add(self, node: Node) -> None:
        sources = self._sources[node]
        number = len(self._numbers)
        self._numbers[node] = number
        upstream, roots = 1 << number, _NOTHING
        for source in sources:
            upstream |= self._upstream[source.node]
            above = self._roots[source.node]
            roots = roots | above if roots else above
        self._upstream[node] = upstream
        operation = operation_of(node)
        if operation is None and self._routes(node):
            self._roots[node] = roots
            if node.name() in _MOVES:
                self._movers[sources[0]].append(node)
            return
        self._roots[node] = frozenset((node,))
        for root in roots:
            self.readers[root].append(node)
        if operation is not None:
            index = operation.index
            for place, edge in enumerate(self._entries[index].inputs):
                self._values.setdefault(edge, (index, place))

    def __contains__(self, node: Node) -> bool:
        return node in self._numbers

    def sources(self, node: Node) -> list[GradientEdge]:
        """Where the inputs of a node come from."""
        known = self._sources.get(node)
        if known is None:
            # What was overwritten as a whole comes first, and has no part in the result.
            edges = node.next_functions[node in self._overwrites :]
            known = [GradientEdge(source, nr) for source, nr in edges if source is not None]
            self._sources[node] = known
        return known

    def is_routing(self, node: Node) -> bool:
        """Whether a node only moves numbers about."""
        return operation_of(node) is None and self._routes(node)

    def _routes(self, node: Node) -> bool:
        """Whether a node that is no operation only moves numbers about."""
        is_leaf = not self.sources(node) and not node.next_functions
        return not is_leaf and node not in self._refused

    def is_upstream(self, node: Node, of: Node) -> bool:
        """Whether a node is upstream of another, or is that node."""
        number = self._numbers.get(node)
        return number is not None and bool(self._upstream[of] >> number & 1)

    def find_roots(self, node: Node) -> frozenset[Node]:
        """The nearest nodes upstream that are no routing; the node itself if it is none."""
        return self._roots[node]

    def number(self, node: Node) -> int:
        """The place of a node in the order of computation."""
        return self._numbers[node]

    def find_reader(self, edge: GradientEdge) -> tuple[int, int] | None:
        """An operation that reads a place of the graph directly: its index, and which input."""
        return self._values.get(edge)

    def find_value(self, edge: GradientEdge) -> Tensor:
        """The value at a place of the graph.

        Raises:
            WhenceError: No operation keeps it.
        """
        entering = self._segments.find_input(edge)
        if entering is not None:
            return entering
        operation = operation_of(edge.node)
        if operation is not None:
            return (operation.fetch() if operation.output.is_meta else operation).output
        reader = self.find_reader(edge)
        if reader is not None:
            return _get_input(self._entries[reader[0]].operation.fetch(), reader[1])
        for mover in self._movers[edge]:
            # To move numbers back is to undo the move.
            (value,) = run_node(mover, [self.find_value(GradientEdge(mover, 0))])
            if value is not None:
                return value
        raise WhenceError(
            "The hidden states of the model are read through routing alone, so that no operation "
            "keeps them. Methods that read the attention maps alone, such as 'gae', work without."
        )


def operation_of(node: Node) -> Operation | None:
    """The operation that a node performs, if it was recorded."""
    operation: Operation | None = getattr(node, "operation", None)
    return operation


def is_scaling(operation: Operation) -> bool:
    """Whether an operation multiplies its one input by a constant, or adds one to it."""
    if isinstance(operation, Shift):
        return True
    scales = operation.kind == "pass" and operation.name in _SCALINGS
    return scales and isinstance(operation, Function) and len(operation.inputs) == 1


def has_tokens(place: GradientEdge, batch: int, count: int) -> bool:
    """Whether there are so many tokens of each sample at a place, unlike in windows."""
    *leading, width = output_metadata(place.node)[place.output_nr].shape
    if len(leading) == 3 and leading[0] == batch and leading[2] * width == count:
        return True  # channels, then rows and columns of tokens
    return math.prod(leading) == batch * count


def has_size_of(node: Node, place: GradientEdge) -> bool:
    """Whether a node puts out as many numbers as there are at a place."""
    sizes = [
        math.prod(output_metadata(edge.node)[edge.output_nr].shape)
        for edge in (GradientEdge(node, 0), place)
    ]
    return sizes[0] == sizes[1]


def _get_input(operation: Operation, number: int) -> Tensor:
    """What an operation keeps of one of its inputs."""
    if isinstance(operation, Add):
        return operation.b / operation.scale if number else operation.a
    if isinstance(operation, Linear | Shift):
        return operation.x
    if isinstance(operation, MatMul):
        return operation.b if number else operation.a
    if isinstance(operation, ChunkedAttention):
        return (operation.queries, operation.keys, operation.values)[number]
    if isinstance(operation, Function):
        return operation.inputs[number].detach()
    raise TypeError(f"{operation.name} keeps no input.")
