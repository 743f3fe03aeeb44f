"""Dependence: which elements of the input each token stands for, by the graph upstream of it.

Marks of 0 and 1 go backward from the values that an attention reads to the input. They pass an
operation by its structure and not by its numbers: a convolution marks its whole receptive field, a
linear map all of its inputs. Two things are left out, as a token does not stand for them: the mean
and spread by which a norm divides, and in x + f(x) all that f adds to the residual stream x.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence._util import torch_internals as internals
from whence._util.torch_internals import node_metadata, output_metadata
from whence.layout.fields import TokenFields
from whence.tracing.backward import REFUSED, fit_to_inputs, sort_nodes
from whence.tracing.marks import (
    add_marks,
    compact,
    is_pointwise,
    mark_all,
    mark_any,
    pass_operation,
    pass_pooling,
    to_marks,
)
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.ops.base import Add, Operation
from whence.tracing.recording import InputPlace, edge_of
from whence.tracing.trace import Trace

# So many elements may be marked at once, over all tokens, where each token has marks of its own.
_MARKS_AT_ONCE = 2**23
# Parts of the names of nodes that may move elements by the values of an index or a mask.
_BY_VALUE = ("CopySlices", "Index", "Masked", "Gather", "Scatter", "Where", "Take", "Sort", "Topk")
# Into so many groups tokens are divided, one after the other, until none overlap within a group.
_GROUPS = (1, 2, 3, 5, 7, 11, 13)


def find_fields(
    trace: Trace, site: AttentionSite, name: str | int, shape: Sequence[int]
) -> TokenFields:
    """Find the elements of an input that each token stands for which an attention reads.

    Args:
        trace: The recorded forward pass.
        site: The attention; its keys are the tokens.
        name: The input, one of those that the trace follows.
        shape: The shape of the input.
    """
    reader = _FieldReader(trace, site, name, torch.Size(shape))
    tokens, device = site.key_count, trace.logits.device
    for groups in _GROUPS:
        fields = _find_disjoint(reader, tokens, groups, device)
        if fields is not None:
            return fields.expand(shape[1:])._replace(by_value=reader.by_value)
    each = torch.eye(tokens, dtype=torch.bool, device=device)
    at_once = max(1, _MARKS_AT_ONCE // max(1, torch.Size(shape).numel()))
    chunks = [
        TokenFields.from_masks(reader.mark(some)).cpu() for some in torch.split(each, at_once)
    ]
    fields = TokenFields.concatenate(chunks).expand(shape[1:])
    return fields._replace(by_value=reader.by_value)


def _find_disjoint(
    reader: _FieldReader, tokens: int, groups: int, device: torch.device
) -> TokenFields | None:
    """Find fields that do not overlap within groups of tokens; None if they do.

    A token is in the group of its number modulo the number of groups, so that neighbours, whose
    fields may overlap, are in different ones. In a group, the marks of an element are the number of
    its token in binary: two choices of tokens for each bit, in place of one for each token.
    """
    bits = max(1, (tokens - 1).bit_length())
    if groups > 1 and 2 * bits * groups >= tokens:
        return None
    powers, numbers = torch.arange(bits, device=device), torch.arange(tokens, device=device)
    has_bit = (numbers >> powers[:, None]) & 1 == 1
    found = []
    for group in range(groups):
        chosen = numbers % groups == group
        marks = reader.mark(torch.cat([has_bit & chosen, ~has_bit & chosen]))
        ones, zeros = marks[:bits], marks[bits:]
        if bool((ones & zeros).any()):
            return None
        weights = (2**powers).reshape(-1, *[1] * (marks.dim() - 1))
        owners = torch.where(ones[0] | zeros[0], (ones * weights).sum(0), -1)
        found.append(TokenFields.from_owners(owners, tokens).cpu())
    return TokenFields.add(found)


class _FieldReader:
    """Marks the elements of an input that tokens stand for."""

    def __init__(
        self, trace: Trace, site: AttentionSite, name: str | int, shape: torch.Size
    ) -> None:
        self._start = trace.entries[site.product.index].inputs[site.values_number]
        self._keys_last = site.keys_first
        self._places = [place for place in trace.inputs if place.name == name]
        self._shape = shape
        self._walk = _Walk(trace)

    @property
    def by_value(self) -> bool:
        """Whether marks went where values decide."""
        return self._walk.by_value

    @torch.no_grad()
    def mark(self, chosen: Tensor) -> Tensor:
        """Mark elements, (choices, batch, ...), given choices of tokens, (choices, tokens).

        A dimension of the input in which all elements have the same marks has a length of 1.
        """
        like = output_metadata(self._start.node)[self._start.output_nr]
        seed = chosen.to(like.dtype)
        seed = seed.reshape(len(seed), *[1] * (len(like.shape) - 2), -1, 1)
        seed = seed.mT if self._keys_last else seed
        leaves = [edge_of(place.leaf) for place in self._places]
        with torch.inference_mode(False):
            found = self._walk.run(self._start, seed.expand(-1, *like.shape), leaves)
        places = zip(self._places, found, strict=True)
        every = [self._place_marks(place, one) for place, one in places if one is not None]
        if not every:
            return chosen.new_zeros(len(chosen), self._shape[0], *[1] * (len(self._shape) - 1))
        return every[0] if len(every) == 1 else torch.stack(every).any(0)

    def _place_marks(self, place: InputPlace, marks: Tensor) -> Tensor:
        """Marks at one place where the model reads the input, in the shape of the input."""
        if place.rows is None:
            batch = marks.shape[1]
            marks = compact(marks) > 0
            return marks.expand(-1, batch, *marks.shape[2:])
        by_row = mark_any(marks, *range(place.rows.dim() + 1, marks.dim())) > 0
        rows, by_row = place.rows.reshape(-1), by_row.reshape(len(marks), -1)
        known = rows >= 0
        whole = by_row.new_zeros(len(marks), self._shape.numel(), dtype=torch.int8)
        rows = rows[known].expand(len(marks), -1)
        whole = whole.scatter_reduce(1, rows, by_row[:, known].to(whole.dtype), "amax")
        return whole.reshape(len(marks), *self._shape) > 0


class _Walk:
    """Carries marks backward through the graph, several choices of tokens at once.

    Attributes:
        by_value: Whether it passed an index or a mask, whose values may be those of an input.
    """

    by_value = False

    def __init__(self, trace: Trace) -> None:
        self._entries = {entry.output.node: entry for entry in trace.entries}
        self._batch = trace.batch

    def run(
        self, start: GradientEdge, seed: Tensor, at: Sequence[GradientEdge]
    ) -> list[Tensor | None]:
        """The marks that arrive at some places; None where none do."""
        asked = {edge.node: number for number, edge in enumerate(at)}
        order, leading = sort_nodes(start.node, asked)
        arrived: dict[Node, dict[int, Tensor]] = {start.node: {start.output_nr: seed}}
        found: list[Tensor | None] = [None] * len(at)
        for node in order:
            values = arrived.pop(node, None)
            if values is None:
                continue
            if node in asked:
                found[asked[node]] = values.get(at[asked[node]].output_nr)
            wanted = [upstream in leading for upstream, _ in node.next_functions]
            if True not in wanted:
                continue
            results = self._pass_node(node, values)
            for (upstream, nr), leads, marks in zip(
                node.next_functions, wanted, results, strict=True
            ):
                if leads and marks is not None and upstream is not None:
                    known = arrived.setdefault(upstream, {})
                    known[nr] = add_marks(known[nr], marks) if nr in known else marks
        return found

    def _pass_node(self, node: Node, values: dict[int, Tensor]) -> Sequence[Tensor | None]:
        operation: Operation | None = getattr(node, "operation", None)
        if operation is not None:
            operation.fetch()
            marks = to_marks(values[0])
            if isinstance(operation, Add):
                return self._pass_addition(node, operation, marks)
            passed = pass_operation(operation, marks, self._batch)
            return self._pass_unknown(node, values) if passed is None else passed
        name = node.name()
        self.by_value |= any(word in name for word in _BY_VALUE)
        if REFUSED in node_metadata(node):
            return self._pass_unknown(node, values)
        if name == internals.CLONE:
            return (values[0],)
        if name == internals.COPY:  # of the second tensor into the first
            return (None, values[0] if node.next_functions[1][0] else None)
        if name in internals.MAX_POOLS:
            return (pass_pooling(node, to_marks(values[0])),)
        numbers, given = list(values), list(values.values())
        outputs = len(output_metadata(node))

        def route(*some: Tensor) -> tuple[Tensor | None, ...]:
            grads: list[Tensor | None] = [None] * outputs
            for number, grad in zip(numbers, some, strict=True):
                grads[number] = grad
            return tuple(fit_to_inputs(node, internals.run_node(node, grads)))

        return internals.batched_map(route)(*given)

    def _pass_addition(self, node: Node, operation: Add, marks: Tensor) -> list[Tensor | None]:
        shapes = operation.shapes
        passed: list[Tensor | None] = [operation.sum_to_shape(marks, shape) for shape in shapes]
        edges = self._entries[node].inputs
        for stream, branch in ((0, 1), (1, 0)):
            if _is_computed_from(edges[branch].node, edges[stream].node):
                passed[branch] = None
                break
        return passed

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
