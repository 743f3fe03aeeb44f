"""Walk of marks: which elements upstream some elements of the graph depend on, by structure.

Marks of 0 and 1 go backward through the graph. They pass an operation by its structure and not by
its numbers: a convolution marks its whole receptive field, a linear map all of its inputs. These
things are left out, as a token does not stand for them: the mean and spread by which a norm
divides, and in x + f(x) all that f adds to the residual stream x, unless f has places upstream of
its own that are asked for. So is, in x * g(x), a gate g that is the same for many places.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence._util import torch_internals as internals
from whence._util.torch_internals import node_metadata, output_metadata
from whence.tracing.backward import REFUSED, fit_to_inputs, sort_nodes
from whence.tracing.mark_nodes import pass_node
from whence.tracing.mark_operations import is_by_value, pass_operation
from whence.tracing.marks import add_marks, is_pointwise, mark_all, sum_marks, to_marks
from whence.tracing.ops.base import Operation
from whence.tracing.ops.sums import Add
from whence.tracing.trace import Trace

# Parts of the names of nodes that may move elements by the values of an index or a mask.
_BY_VALUE = ("CopySlices", "Index", "Masked", "Gather", "Scatter", "Where", "Take", "Sort", "Topk")


class MarkWalk:
    """Carries marks backward through the graph, several choices of tokens at once.

    Attributes:
        by_value: Whether it passed an index or a mask, whose values may be those of an input.
    """

    by_value = False

    def __init__(self, trace: Trace) -> None:
        self._entries = {entry.output.node: entry for entry in trace.entries}
        self._batch = trace.batch
        self._ends, self._blocked = set[Node](), set[Node]()

    def run(
        self,
        start: GradientEdge,
        seed: Tensor,
        at: Sequence[GradientEdge],
        *,
        ends: bool = False,
        blocked: Collection[Node] = (),
        branches: bool = False,
    ) -> list[Tensor | None]:
        """The marks that arrive at some places; None where none do.

        Args:
            start: Where to begin.
            seed: The marks there, (choices, ...) in the shape of the value.
            at: The places.
            ends: Whether marks go no further than these places.
            blocked: Nodes that marks do not pass.
            branches: Whether marks go along all terms of x + f(x), and not along x alone.
        """
        asked: dict[Node, list[int]] = {}
        for number, edge in enumerate(at):
            asked.setdefault(edge.node, []).append(number)
        order, leading = sort_nodes(start.node, asked)
        self._blocked = set(blocked)
        self._ends = {*asked, *blocked} if ends else set()
        arrived: dict[Node, dict[int, Tensor]] = {start.node: {start.output_nr: seed}}
        found: list[Tensor | None] = [None] * len(at)
        for node in order:
            values = arrived.pop(node, None)
            if values is None:
                continue
            for number in asked.get(node, ()):
                found[number] = values.get(at[number].output_nr)
            wanted = [upstream in leading for upstream, _ in node.next_functions]
            if True not in wanted or node in blocked or (ends and node in asked):
                continue
            results = self._pass_node(node, values, branches)
            for (upstream, nr), leads, marks in zip(
                node.next_functions, wanted, results, strict=True
            ):
                if leads and marks is not None and upstream is not None:
                    known = arrived.setdefault(upstream, {})
                    known[nr] = add_marks(known[nr], marks) if nr in known else marks
        return found

    def _pass_node(
        self, node: Node, values: dict[int, Tensor], branches: bool
    ) -> Sequence[Tensor | None]:
        operation: Operation | None = getattr(node, "operation", None)
        if operation is not None:
            self.by_value |= is_by_value(operation)
            marks = to_marks(values[0])
            if isinstance(operation, Add):
                return self._pass_addition(node, operation, marks, branches)
            passed = pass_operation(operation, marks, self._batch)
            if passed is not None and not branches and operation.kind == "product":
                self._leave_out_gate(node, operation, passed)
            return self._pass_unknown(node, values) if passed is None else passed
        name = node.name()
        self.by_value |= any(word in name for word in _BY_VALUE)
        if REFUSED in node_metadata(node):
            return self._pass_unknown(node, values)
        if name == internals.CLONE:
            return (values[0],)
        if name == internals.COPY:  # of the second tensor into the first
            return (None, values[0] if node.next_functions[1][0] else None)
        chosen = pass_node(node, values)
        if chosen is not None:
            return chosen
        numbers, given = list(values), list(values.values())
        outputs = len(output_metadata(node))

        def route(*some: Tensor) -> tuple[Tensor | None, ...]:
            grads: list[Tensor | None] = [None] * outputs
            for number, grad in zip(numbers, some, strict=True):
                grads[number] = grad
            return tuple(fit_to_inputs(node, internals.run_node(node, grads)))

        return internals.batched_map(route)(*given)

    def _pass_addition(
        self, node: Node, operation: Add, marks: Tensor, branches: bool
    ) -> list[Tensor | None]:
        shapes = operation.shapes
        passed: list[Tensor | None] = [sum_marks(marks, shape) for shape in shapes]
        edges = self._entries[node].inputs
        for stream, branch in () if branches else ((0, 1), (1, 0)):
            if _is_computed_from(edges[branch].node, edges[stream].node):
                ends = self._find_ends(edges[stream].node)
                if self._find_ends(edges[branch].node) <= ends:
                    passed[branch] = None
                elif not ends:  # what entered may be added once more, as embeddings are
                    passed[stream] = None
                break  # else f has places in it of which tokens are made, as x has
        return passed

    def _find_ends(self, node: Node) -> set[Node]:
        """The nearest places upstream of a node that marks go no further than."""
        found, waiting, seen = set[Node](), [node], {node}
        while self._ends and waiting:
            at = waiting.pop()
            if at in self._ends:
                found.add(at)
                continue
            more = [one for one, _ in at.next_functions if one is not None and one not in seen]
            seen.update(more)
            waiting += more
        return found - self._blocked

    def _leave_out_gate(
        self, node: Node, operation: Operation, passed: list[Tensor | None]
    ) -> None:
        """Leave out a factor that is one number for many places, and computed from the other.

        In x * g(x), as squeeze and excitation have it, it says how much and not what.
        """
        edges, whole = self._entries[node].inputs, operation.output.numel()
        sizes = [math.prod(output_metadata(edge.node)[edge.output_nr].shape) for edge in edges]
        for stream, gate in ((0, 1), (1, 0)) if len(edges) == 2 else ():
            smaller = sizes[gate] < whole == sizes[stream]
            if smaller and _is_computed_from(edges[gate].node, edges[stream].node):
                passed[gate] = None

    def _pass_unknown(self, node: Node, values: dict[int, Tensor]) -> list[Tensor | None]:
        """Mark all elements of the samples that are marked: nothing is known of the call."""
        results: list[Tensor | None] = []
        for upstream, nr in node.next_functions:
            if upstream is None:
                results.append(None)
                continue
            shape = output_metadata(upstream)[nr].shape
            spread = [mark_all(value, shape, self._batch) for value in values.values()]
            results.append(torch.stack(spread).sum(0))
        return results


# The stream of an addition -----------------------------------------------------------------------


def _is_computed_from(branch: Node, stream: Node) -> bool:
    """Whether a term is a function of the other: of all that this one is only moved from."""
    anchors, near = _find_anchors(stream), _find_anchors(branch)
    if anchors & near:
        return False
    waiting, seen = list(near), set(near)
    while waiting:
        for upstream, _ in waiting.pop().next_functions:
            if upstream is not None and upstream not in seen:
                seen.add(upstream)
                waiting.append(upstream)
    return anchors <= seen


def _find_anchors(node: Node) -> set[Node]:
    """The nearest operations upstream that mix elements, or leaves of the graph."""
    anchors: set[Node] = set()
    waiting, seen = [node], {node}
    while waiting:
        at = waiting.pop()
        operation: Operation | None = getattr(at, "operation", None)
        mixes = operation is not None and not is_pointwise(operation)
        upstream = [one for one, _ in at.next_functions if one is not None]
        if mixes or not upstream:
            anchors.add(at)
            continue
        waiting += [one for one in upstream if one not in seen]
        seen.update(upstream)
    return anchors
