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
from whence.tracing import calls
from whence.tracing.backward import REFUSED, fit_to_inputs, sort_nodes
from whence.tracing.ops.attention import AttentionSite, ChunkedAttention
from whence.tracing.ops.base import Add, Function, Operation, Shift, is_norm
from whence.tracing.ops.products import ConstantMatMul, Convolution, Linear, MatMul
from whence.tracing.recording import InputPlace, edge_of
from whence.tracing.trace import Trace

# So many elements may be marked at once, over all tokens, where each token has marks of its own.
_MARKS_AT_ONCE = 2**23
# Functions of one tensor that treat each element by itself, by their name.
_MIXING = frozenset("softmax log_softmax softmin layer_norm rms_norm group_norm normalize".split())
_POINTWISE = (calls.PASSING | calls.ELEMENT_WISE) - _MIXING


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
    bits = max(1, (tokens - 1).bit_length())
    powers = torch.arange(bits, device=device)
    has_bit = (torch.arange(tokens, device=device) >> powers[:, None]) & 1 == 1
    marks = reader.mark(torch.cat([has_bit, ~has_bit]))
    ones, zeros = marks[:bits], marks[bits:]
    if not bool((ones & zeros).any()):
        # No element is read by two tokens: its marks are the number of its token in binary.
        weights = (2**powers).reshape(-1, *[1] * (marks.dim() - 1))
        owners = torch.where(ones[0] | zeros[0], (ones * weights).sum(0), -1)
        return TokenFields.from_owners(owners, tokens).expand(shape[1:]).cpu()
    each = torch.eye(tokens, dtype=torch.bool, device=device)
    at_once = max(1, _MARKS_AT_ONCE // marks[0].numel())
    chunks = [
        TokenFields.from_masks(reader.mark(some)).cpu() for some in torch.split(each, at_once)
    ]
    return TokenFields.concatenate(chunks).expand(shape[1:])


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
            marks = _compact(marks) > 0
            return marks.expand(-1, batch, *marks.shape[2:])
        by_row = _any(marks, *range(place.rows.dim() + 1, marks.dim())) > 0
        rows, by_row = place.rows.reshape(-1), by_row.reshape(len(marks), -1)
        known = rows >= 0
        whole = by_row.new_zeros(len(marks), self._shape.numel(), dtype=torch.int8)
        rows = rows[known].expand(len(marks), -1)
        whole = whole.scatter_reduce(1, rows, by_row[:, known].to(whole.dtype), "amax")
        return whole.reshape(len(marks), *self._shape) > 0


class _Walk:
    """Carries marks backward through the graph, several choices of tokens at once."""

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
                    known[nr] = _add(known[nr], marks) if nr in known else marks
        return found

    def _pass_node(self, node: Node, values: dict[int, Tensor]) -> Sequence[Tensor | None]:
        operation: Operation | None = getattr(node, "operation", None)
        if operation is not None:
            marks = _to_marks(values[0])
            if isinstance(operation, Add):
                return self._pass_addition(node, operation, marks)
            return _pass_operation(operation, marks, self._batch)
        name = node.name()
        if REFUSED in node_metadata(node):
            return self._pass_unknown(node, values)
        if name == internals.CLONE:
            return (values[0],)
        if name == internals.COPY:  # of the second tensor into the first
            return (None, values[0] if node.next_functions[1][0] else None)
        if name in internals.MAX_POOLS:
            return (_pool_backward(node, _to_marks(values[0])),)
        numbers, given = list(values), [_to_marks(value) for value in values.values()]
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
            spread = [_spread(value, shape, self._batch) for value in values.values()]
            results.append(torch.stack(spread).sum(0))
        return results


# Marks are mostly the same along whole dimensions, which are then expanded: a stride of 0. They are
# worked on without these dimensions, which saves nearly all of the time.


def _compact(value: Tensor) -> Tensor:
    """The value with a length of 1 along dimensions in which it is expanded."""
    for dim in range(1, value.dim()):
        if value.stride(dim) == 0 and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


def _to_marks(value: Tensor) -> Tensor:
    return (_compact(value) != 0).to(value.dtype).expand(value.shape)


def _add(a: Tensor, b: Tensor) -> Tensor:
    return (_compact(a) + _compact(b)).expand(a.shape)


def _any(marks: Tensor, *dims: int) -> Tensor:
    """Marks of a length of 1 along some dimensions, where any was set there."""
    shape = list(marks.shape)
    for dim in dims:
        shape[dim] = 1
    return _compact(marks).amax(dims, keepdim=True).expand(shape)


def _spread(marks: Tensor, shape: torch.Size, batch: int) -> Tensor:
    """Marks of everything that may depend on something that is marked."""
    choices = len(marks)
    if marks.dim() > 1 and len(shape) and marks.shape[1] == shape[0] == batch:
        by_sample = _any(marks, *range(2, marks.dim())).reshape(choices, batch)
        return by_sample.reshape(choices, batch, *[1] * (len(shape) - 1)).expand(choices, *shape)
    return _any(marks, *range(1, marks.dim())).reshape(-1, *[1] * len(shape)).expand(-1, *shape)


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
        mixes = operation is not None and not _is_pointwise(operation)
        upstream = [one for one, _ in at.next_functions if one is not None]
        if mixes or not upstream:
            anchors.add(at)
            continue
        waiting += [one for one in upstream if one not in seen]
        seen.update(upstream)
    return anchors


# Single operations -------------------------------------------------------------------------------


def _is_pointwise(operation: Operation) -> bool:
    """Whether an element of the output stands for the same element of each input."""
    if not isinstance(operation, Function):
        return isinstance(operation, Shift)
    if operation.kind in ("product", "quotient") or operation.name in _POINTWISE:
        return True
    same = all(x.shape == operation.output.shape for x in operation.inputs)
    return same and (is_norm(operation) or operation.mixed_dims == 0)


def _pass_operation(operation: Operation, marks: Tensor, batch: int) -> list[Tensor | None]:
    """Marks of the inputs of an operation, given those of its output, (choices, ...)."""
    choices = len(marks)
    if isinstance(operation, Convolution):
        return [_convolve_backward(operation, marks)]
    if isinstance(operation, ConstantMatMul):
        return [operation.adjoint(marks, (operation.weight != 0).to(marks.dtype))]
    if isinstance(operation, Linear):
        return [_any(marks, -1).expand(choices, *operation.x.shape)]
    if isinstance(operation, Shift):
        return [operation.sum_to_shape(marks, operation.x.shape)]
    if isinstance(operation, MatMul):
        rows, columns = _any(marks, -1), _any(marks, -2)
        a = rows.expand(*rows.shape[:-1], operation.a.shape[-1])
        b = columns.expand(*columns.shape[:-2], operation.b.shape[-2], columns.shape[-1])
        return [_sum_to(a, operation.a.shape), _sum_to(b, operation.b.shape)]
    if isinstance(operation, ChunkedAttention):
        rows = _any(marks, -1)
        every = _any(rows, -2)
        return [
            rows.expand(choices, *operation.queries.shape),
            every.expand(choices, *operation.keys.shape),
            every.expand(choices, *operation.values.shape),
        ]
    if isinstance(operation, Function):
        return _pass_function(operation, marks, batch)
    raise TypeError(f"Nothing is known of how tokens depend on the inputs of {operation.name}.")


def _pass_function(operation: Function, marks: Tensor, batch: int) -> list[Tensor | None]:
    shapes = [x.shape for x in operation.inputs]
    if operation.name == "mul" and shapes == [operation.output.shape]:
        # Nothing is left of what is multiplied by 0, such as padding.
        (factor,) = operation.vjp(torch.ones_like(operation.output))
        return [marks * (factor != 0)]
    if _is_pointwise(operation):
        return [operation.sum_to_shape(marks, shape) for shape in shapes]
    if operation.kind == "sum":
        # The Jacobian of a sum or a mean has no negative entries that could cancel.
        return list(internals.batched_map(operation.vjp)(marks))
    mixed = operation.mixed_dims or _count_mixed_dims(operation)
    if mixed is not None and shapes == [operation.output.shape]:
        dims = range(-mixed, 0)
        return [(_any(marks, *dims) if dims else marks).expand_as(marks)]
    return [_spread(marks, shape, batch) for shape in shapes]


def _count_mixed_dims(operation: Function) -> int | None:
    """How many of the last dimensions a function mixes, shown by its values; None if all."""
    x = operation.inputs[0].detach()
    if len(operation.inputs) != 1 or x.shape != operation.output.shape:
        return None
    for mixed in range(x.dim() - 1):
        rows = torch.arange(x.shape[: x.dim() - mixed].numel(), device=x.device)
        rows = rows.reshape(*x.shape[: x.dim() - mixed], *[1] * mixed)
        # Rows that are changed must not change others: those whose number has a bit, for each bit.
        bits = range(max(1, rows.numel() - 1).bit_length())
        groups = [(rows >> bit) & 1 == value for bit in bits for value in (0, 1)]
        if all(_keeps_others(operation, x, group) for group in groups):
            return mixed
    return None


def _keeps_others(operation: Function, x: Tensor, changed: Tensor) -> bool:
    output = operation.function(torch.where(changed, x * 0.5 + 1, x))
    return bool(((output == operation.output) | changed).all())


def _convolve_backward(operation: Convolution, marks: Tensor) -> Tensor:
    """Marks of the receptive field; channels are taken as one."""
    stride, padding, dilation, *_ = operation.settings
    return _mark_windows(
        marks, operation.x.shape, operation.weight.shape[2:], stride, padding, dilation
    )


def _mark_windows(
    marks: Tensor,
    shape: torch.Size,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Marks of the windows that outputs are made of, in all channels: (choices, *shape)."""
    dims = len(size)
    merged = _any(marks, -dims - 1).reshape(-1, 1, *marks.shape[-dims:])
    x = merged.new_empty(len(merged), 1, *shape[-dims:])
    settings = (list(stride), list(padding), list(dilation), False, [0] * dims, 1)
    found = internals.convolution_backward(merged, x, merged.new_ones(1, 1, *size), settings)
    found = found.round().reshape(len(marks), *shape[: -dims - 1], 1, *shape[-dims:])
    return found.expand(len(marks), *shape)


def _pool_backward(node: Node, marks: Tensor) -> Tensor:
    """Marks of the windows of a maximum, of which autograd would mark one element alone."""
    return _mark_windows(marks, _input_shape(node, 0), *internals.saved_windows(node))


def _input_shape(node: Node, number: int) -> torch.Size:
    upstream, nr = node.next_functions[number]
    if upstream is None:
        raise ValueError("What does not depend on the input has no marks.")
    return output_metadata(upstream)[nr].shape


def _sum_to(marks: Tensor, shape: torch.Size) -> Tensor:
    """Undo the broadcasting of a factor's leading dimensions."""
    return marks.sum_to_size(len(marks), *[1] * (marks.dim() - 1 - len(shape)), *shape).reshape(
        len(marks), *shape
    )
