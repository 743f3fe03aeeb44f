"""Going down the graph from the logits, node by node, in several readings at once.

This does what autograd's own engine does, with these differences. Several readings (the gradient,
and relevance under a set of rules) go down side by side, so that a layer can be looked at in all of
them and let go before the next. Nothing is computed for an input that leads to no place that is
asked for. And where only some rows of a tensor can be other than zero, because the classifier reads
only some tokens, only these rows are worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._vmap_internals import _vmap
from torch.autograd.graph import GradientEdge

from whence.rules import RuleSet, no_rule
from whence.tracing.ops.operations import Operation

REFUSED = "whence: no relevance passes here"


class Rows(NamedTuple):
    """A tensor that is zero but for neighbouring rows.

    Attributes:
        value: These rows, perhaps for several classes, which are then its first dimension.
        dim: Where rows are counted, from the end.
        start: The first of them.
        shape: The shape of the whole tensor, without classes.
    """

    value: Tensor
    dim: int
    start: int
    shape: torch.Size

    @property
    def place(self) -> tuple[int, int, int]:
        """Which rows they are."""
        return self.dim, self.start, self.value.shape[self.dim]

    def whole(self) -> Tensor:
        """The tensor with its zeros."""
        classes = self.value.shape[: self.value.dim() - len(self.shape)]
        whole = self.value.new_zeros(*classes, *self.shape)
        whole.narrow(*self.place).copy_(self.value)
        return whole


Value = Tensor | Rows


def descend(
    logits: Tensor,
    seed: Tensor,
    readings: Sequence[RuleSet | None],
    places: Sequence[GradientEdge],
    *,
    batch: int,
    several: bool = False,
    release: bool = False,
) -> Iterator[tuple[int, list[Tensor]]]:
    """Read the graph below the logits, and hand over the readings at places as they are known.

    Args:
        logits: Where to begin.
        seed: What every reading begins with, in the shape of the logits.
        readings: How to read: by rules, or None for gradients.
        places: Where readings are wanted. They come in the order in which they are met.
        batch: Number of samples.
        several: Whether the seed has a first dimension of classes, which all readings then have.
        release: Whether operations let go of their tensors once they have been passed.

    Yields:
        The number of a place, and its readings.
    """
    assert logits.grad_fn is not None
    asked: dict[Any, list[int]] = {}
    for number, place in enumerate(places):
        asked.setdefault(place.node, []).append(number)
    order, leading = _way_down(logits.grad_fn, asked)
    walk = _Walk(batch, several)
    arrived: list[dict[Any, dict[int, Value]]] = [{} for _ in readings]
    for waiting in arrived:
        waiting[logits.grad_fn] = {logits.output_nr: seed}
    left = set(range(len(places)))
    for node in order:
        incoming = [waiting.pop(node, {}) for waiting in arrived]
        for number in asked.get(node, ()):
            at = places[number].output_nr
            read = [_whole(values[at]) if at in values else None for values in incoming]
            left.discard(number)
            yield number, [walk.zeros(places[number], seed) if r is None else r for r in read]
            del read
        edges = node.next_functions
        wanted = tuple(below in leading for below, _ in edges)
        for values, waiting, rules in zip(incoming, arrived, readings, strict=True):
            if not values or True not in wanted:
                continue
            results = walk.through(node, values, rules, wanted)
            values.clear()
            for (below, nr), leads, result in zip(edges, wanted, results, strict=True):
                if leads and result is not None:
                    known = waiting.setdefault(below, {})
                    known[nr] = _added(known[nr], result) if nr in known else result
            del results
        operation = getattr(node, "operation", None)
        if release and operation is not None:
            operation.release()
    for number in left:
        yield number, [walk.zeros(places[number], seed) for _ in readings]


def _way_down(top: Any, asked: dict[Any, list[int]]) -> tuple[list[Any], set[Any]]:
    """Nodes that lead to places, each before all that is below it; the same as a set."""
    finished: list[Any] = []
    leading: set[Any] = set()
    seen = {top}
    path = [(top, iter(top.next_functions))]
    while path:
        node, below = path[-1]
        for inner, _ in below:
            if inner is not None and inner not in seen:
                seen.add(inner)
                path.append((inner, iter(inner.next_functions)))
                break
        else:
            path.pop()
            if node in asked or any(inner in leading for inner, _ in node.next_functions):
                leading.add(node)
                finished.append(node)
    return finished[::-1], leading


def _whole(value: Value) -> Tensor:
    return value.whole() if isinstance(value, Rows) else value


def _typed(value: Value, dtype: torch.dtype) -> Value:
    """A reading in the type of what it belongs to: operations may mix types, or change them."""
    plain = value.value if isinstance(value, Rows) else value
    if plain.dtype == dtype:
        return value
    return value._replace(value=plain.to(dtype)) if isinstance(value, Rows) else plain.to(dtype)


def _added(a: Value, b: Value) -> Value:
    if isinstance(a, Rows) and isinstance(b, Rows) and a.place == b.place:
        return a._replace(value=a.value + b.value)
    if isinstance(a, Rows):
        a, b = b, a
    if isinstance(b, Rows) and not isinstance(a, Rows):
        total = a.clone()
        total.narrow(*b.place).add_(b.value)
        return total
    return _whole(a) + _whole(b)


class _Walk:
    """How readings pass single nodes."""

    def __init__(self, batch: int, several: bool) -> None:
        self._batch = batch
        self._several = several

    def zeros(self, place: GradientEdge, seed: Tensor) -> Tensor:
        """The reading of a place that nothing arrives at."""
        classes = seed.shape[:1] if self._several else ()
        like = place.node._input_metadata[place.output_nr]
        return seed.new_zeros(*classes, *like.shape, dtype=like.dtype)

    def through(
        self, node: Any, values: dict[int, Value], rules: RuleSet | None, wanted: tuple[bool, ...]
    ) -> Sequence[Value | None]:
        """What arrives at the inputs of a node."""
        operation = getattr(node, "operation", None)
        if operation is not None:
            results = self._operation(operation, values[0], rules, wanted)
            return [
                None if result is None else _typed(result, below._input_metadata[nr].dtype)
                for (below, nr), result in zip(node.next_functions, results, strict=True)
            ]
        if rules is not None and REFUSED in node.metadata:
            raise no_rule(rules.name, *node.metadata[REFUSED])
        if len(values) == 1:
            (value,) = values.values()
            name = node.name()
            simple = name in _MOVING and len(node.next_functions) == 1
            if simple and isinstance(value, Tensor) and not self._several:
                return (node(value),)  # by far the most frequent case, without detours
            moved = self._moved(node, name, value)
            if moved is not None:
                return moved
        return self._routed(node, {nr: _whole(value) for nr, value in values.items()})

    def _operation(
        self,
        operation: Operation,
        value: Value,
        rules: RuleSet | None,
        wanted: tuple[bool, ...],
    ) -> Sequence[Value | None]:
        shapes: Sequence[torch.Size | None] = ()
        if isinstance(value, Rows) and (rules is None or rules.in_parts):
            part = operation.only_rows(*value.place)
            if part is not None:
                operation, shapes = part
        operation.wanted = wanted if rules is None or rules.in_parts else ()
        plain = value.value if shapes and isinstance(value, Rows) else _whole(value)
        read = operation.gradient if rules is None else partial(rules.propagate, operation)
        of_rules = operation.takes_classes if rules is None else rules.takes_classes(operation)
        results: Sequence[Tensor | None]
        results = list(read(plain)) if of_rules else self._of_classes(read, [plain])
        operation.wanted = ()
        if not shapes or not isinstance(value, Rows):
            return results
        return [
            result
            if result is None or shape is None
            else Rows(result, value.dim, value.start, shape)
            for result, shape in zip(results, shapes, strict=True)
        ]

    def _routed(self, node: Any, values: dict[int, Tensor]) -> list[Tensor | None]:
        """Through a node of autograd's own, which only moves numbers, or knows gradients alone."""
        numbers, given = list(values), list(values.values())
        outputs = len(node._input_metadata)

        def back(*some: Tensor) -> Sequence[Tensor | None]:
            grads: list[Tensor | None] = [None] * outputs
            for number, grad in zip(numbers, some, strict=True):
                grads[number] = grad
            return _fitting(node, _called(node, grads))

        return self._of_classes(back, given)

    def _of_classes(
        self, read: Callable[..., Sequence[Tensor | None]], given: list[Tensor]
    ) -> list[Tensor | None]:
        if not self._several:
            return list(read(*given))
        # The one that autograd itself uses for several gradients: rules may use autograd inside.
        each = _vmap(lambda *some: tuple(read(*some)), 0, 0, allow_none_pass_through=True)
        return list(each(*given))

    def _moved(self, node: Any, name: str, value: Value) -> list[Value] | None:
        """Rows through a node that picks or moves them; None where that cannot be told."""
        if name in _PICKING and not isinstance(value, Rows):
            return self._picked(node, name, value)
        if not isinstance(value, Rows) or name not in _MOVING:
            return None
        moved = _MOVING[name](node, value)
        if moved is None or moved.shape[0] != self._batch or moved.dim == -len(moved.shape):
            return None
        # What has two inputs here adds a constant, which leads nowhere.
        return [moved] * len(node.next_functions)

    def _picked(self, node: Any, name: str, value: Tensor) -> list[Value] | None:
        shape = torch.Size(node._saved_self_sym_sizes)
        dim = _signed(node._saved_dim) % len(shape)
        if dim == 0 or shape[0] != self._batch:
            return None
        if name == "SelectBackward0":
            start = _signed(node._saved_index) % shape[dim]
            return [Rows(value.unsqueeze(dim - len(shape)), dim - len(shape), start, shape)]
        # As written in Python: from the end if negative, and perhaps before the beginning.
        start, *_ = slice(_signed(node._saved_start), None).indices(shape[dim])
        length = value.shape[dim - len(shape)]
        if node._saved_step != 1 or length == shape[dim]:
            return None
        return [Rows(value, dim - len(shape), start, shape)]


def _called(node: Any, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    if callable(node):
        results = node(*grads)
        return results if isinstance(results, tuple) else (results,)
    # An autograd function that the model brought along. The engine would not stop at its inputs if
    # one of them leads to another, and would not tell them apart if they are one.
    given = [
        torch.zeros(like.shape, dtype=like.dtype, device=like.device) if grad is None else grad
        for grad, like in zip(grads, node._input_metadata, strict=True)
    ]
    found = node.apply(*given)
    found = found if isinstance(found, tuple) else (found,)
    needed = (grad for grad, need in zip(found, node.needs_input_grad, strict=False) if need)
    return [None if below is None else next(needed) for below, _ in node.next_functions]


def _fitting(node: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients in the shapes and types of what they belong to, which nodes leave to the engine."""
    fitting: list[Tensor | None] = []
    for (below, nr), grad in zip(node.next_functions, grads, strict=True):
        if below is not None and grad is not None:
            like = below._input_metadata[nr]
            if tuple(grad.shape) != tuple(like.shape):
                grad = grad.sum_to_size(like.shape)
            grad = grad if grad.dtype == like.dtype else grad.to(like.dtype)
        fitting.append(grad)
    return fitting


# Rows that are picked and moved ------------------------------------------------------------------


def _signed(number: int) -> int:
    """A number that autograd kept as one without a sign."""
    return number - 2**64 if number >= 2**63 else number


def _kept(node: Any, rows: Rows) -> Rows | None:
    """Rows of the one term that is no constant; in calls that were hidden there may be two."""
    terms = [edge for edge in node.next_functions if edge[0] is not None]
    scaled = node.next_functions[0][0] is None and node._saved_alpha != 1
    if len(terms) > 1 or scaled:
        return None
    [(below, nr)] = terms
    like = below._input_metadata[nr]
    same = tuple(like.shape) == tuple(rows.shape) and like.dtype == rows.value.dtype
    return rows if same else None


def _transposed(node: Any, rows: Rows) -> Rows:
    dims = list(range(-len(rows.shape), 0))
    a, b = (_signed(d) % len(dims) for d in (node._saved_dim0, node._saved_dim1))
    dims[a], dims[b] = dims[b], dims[a]
    return _permuted_by(dims, rows)


def _permuted(node: Any, rows: Rows) -> Rows:
    forward = [_signed(d) % len(rows.shape) for d in node._saved_dims]
    return _permuted_by([forward.index(d) - len(forward) for d in range(len(forward))], rows)


def _permuted_by(dims: list[int], rows: Rows) -> Rows:
    """Rows of a tensor whose dimension i was dimension dims[i], counted from the end."""
    classes = range(rows.value.dim() - len(dims))
    return Rows(
        rows.value.permute(*classes, *dims),
        dims.index(rows.dim) - len(dims),
        rows.start,
        torch.Size(rows.shape[d] for d in dims),
    )


def _viewed(node: Any, rows: Rows) -> Rows | None:
    """Rows in another shape, where some dimension of it counts the same rows."""
    shape = torch.Size(node._saved_self_sym_sizes)
    behind = rows.shape[len(rows.shape) + rows.dim + 1 :].numel()
    for dim in range(-len(shape), 0):
        same = shape[dim] == rows.shape[rows.dim]
        if same and shape[len(shape) + dim + 1 :].numel() == behind:
            small = list(shape)
            small[dim] = rows.value.shape[rows.dim]
            classes = rows.value.shape[: rows.value.dim() - len(rows.shape)]
            return Rows(rows.value.reshape(*classes, *small), dim, rows.start, shape)
    return None


_PICKING = ("SelectBackward0", "SliceBackward0")
_MOVING: dict[str, Callable[[Any, Rows], Rows | None]] = {
    "AddBackward0": _kept,
    "CloneBackward0": _kept,
    "TransposeBackward0": _transposed,
    "PermuteBackward0": _permuted,
    "ViewBackward0": _viewed,
    "UnsafeViewBackward0": _viewed,
    "ReshapeAliasBackward0": _viewed,
}
