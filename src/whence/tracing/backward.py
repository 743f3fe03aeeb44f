"""The backward pass, node by node from the logits, for several rule sets at once.

Unlike autograd's engine, it takes several values (gradient, relevance under a rule set) side by
side, so that a block can be read in all of them and freed before the next. It computes nothing for
inputs that lead to no place asked for. And where only some rows of a tensor can be other than zero,
because the classifier reads only some tokens, it works on these rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence._util import torch_internals as internals
from whence._util.progress import check_watcher
from whence._util.torch_internals import node_metadata, output_metadata
from whence.errors import NoRuleError
from whence.tracing.ops.base import BackwardRules, Operation
from whence.tracing.sparse_rows import MOVES, SparseRows

REFUSED = "whence: no relevance passes here"
"""Under this key the metadata of a node say that gradients pass it, but not relevance."""


Value = Tensor | SparseRows


def propagate_backward(
    start: Tensor | GradientEdge,
    seeds: Sequence[Tensor],
    rules: Sequence[BackwardRules | None],
    at: Sequence[GradientEdge],
    *,
    batch: int,
    several: bool = False,
    release: bool = False,
    ends: bool = False,
) -> Iterator[tuple[int, list[Tensor]]]:
    """Go backward from the logits, and hand over values at places of the graph as they are met.

    Args:
        start: Where to begin: the logits, or a place.
        seeds: The values there, in the same shape, one for each of the rules.
        rules: How values pass operations, one for each value; None for plain gradients.
        at: Where values are wanted.
        batch: Number of samples.
        several: Whether seeds have a first dimension of classes, which all values then have.
        release: Whether operations free their tensors once they have been passed.
        ends: Whether values go no further than where they are wanted.
    """
    if (top := start.node if isinstance(start, GradientEdge) else start.grad_fn) is None:
        raise ValueError("The logits belong to no graph.")
    asked: dict[Node, list[int]] = {}
    for number, edge in enumerate(at):
        asked.setdefault(edge.node, []).append(number)
    order, leading = sort_nodes(top, asked)
    step = _BackwardStep(batch, several)
    arrived: list[dict[Node | None, dict[int, Value]]] = [{} for _ in rules]
    for waiting, seed in zip(arrived, seeds, strict=True):
        waiting[top] = {start.output_nr: seed}
    left = set(range(len(at)))
    pairs = list(zip(arrived, rules, strict=True))
    whole = any(one is not None and one.reads_linear for one in rules)
    for node in order:
        check_watcher()
        incoming = [waiting.pop(node, None) for waiting in arrived]
        if node in asked:
            for number in asked[node]:
                nr = at[number].output_nr
                read = [
                    _to_dense(values[nr])
                    if values and nr in values
                    else step.zeros(at[number], seed)
                    for values, seed in zip(incoming, seeds, strict=True)
                ]
                left.discard(number)
                yield number, read
                del read
        edges = node.next_functions
        further = not (ends and node in asked)
        wanted = tuple([further and upstream in leading for upstream, _ in edges])
        operation: Operation | None = getattr(node, "operation", None)
        if True in wanted and any(incoming):
            if operation is not None:
                operation.fetch(whole=whole)
            for number, (waiting, rule_set) in enumerate(pairs):
                # Values of this node are freed as soon as it has been passed.
                values, incoming[number] = incoming[number], None
                if not values:
                    continue
                results = step.pass_node(node, edges, operation, values, rule_set, wanted)
                del values
                for (upstream, nr), leads, result in zip(edges, wanted, results, strict=True):
                    if leads and result is not None:
                        known = waiting.get(upstream)
                        if known is None:
                            waiting[upstream] = {nr: result}
                        else:
                            known[nr] = _add(known[nr], result) if nr in known else result
                del results
        if release and operation is not None:
            operation.release()
    for number in left:
        yield number, [step.zeros(at[number], seed) for seed in seeds]


def sort_nodes(
    top: Node, asked: Mapping[Node, object], ends: bool = False
) -> tuple[list[Node], set[Node | None]]:
    """Nodes that lead to places asked for, each before all upstream of it; the same as a set.

    Args:
        top: Where to begin.
        asked: The nodes of the places.
        ends: Whether to go no further upstream than these.
    """
    finished: list[Node] = []
    leading: set[Node | None] = set()
    seen = {top}
    # Of each node on the path: its edges, and how many of them have been followed.
    path: list[tuple[Node, tuple[tuple[Node | None, int], ...], int]]
    path = [(top, () if ends and top in asked else top.next_functions, 0)]
    while path:
        node, edges, done = path.pop()
        for inner, _ in edges[done:]:
            done += 1
            if inner is not None and inner not in seen:
                seen.add(inner)
                path.append((node, edges, done))
                path.append((inner, () if ends and inner in asked else inner.next_functions, 0))
                break
        else:
            is_leading = node in asked
            for inner, _ in edges:
                is_leading = is_leading or inner in leading
            if is_leading:
                leading.add(node)
                finished.append(node)
    return finished[::-1], leading


def _to_dense(value: Value) -> Tensor:
    return value.to_dense() if isinstance(value, SparseRows) else value


def _cast(value: Value, dtype: torch.dtype) -> Value:
    """A value in the type of what it belongs to: operations may mix types, or change them."""
    if isinstance(value, Tensor):
        return value if value.dtype == dtype else value.to(dtype)
    return value if value.rows.dtype == dtype else value._replace(rows=value.rows.to(dtype))


def _add(a: Value, b: Value) -> Value:
    if isinstance(a, SparseRows) and isinstance(b, SparseRows) and a.range == b.range:
        return a._replace(rows=a.rows + b.rows)
    if isinstance(a, SparseRows):
        a, b = b, a
    if isinstance(b, SparseRows) and not isinstance(a, SparseRows):
        total = a.clone()
        total.narrow(*b.range).add_(b.rows)
        return total
    return _to_dense(a) + _to_dense(b)


class _BackwardStep:
    """How values pass single nodes."""

    def __init__(self, batch: int, several: bool) -> None:
        self._batch = batch
        self._several = several

    def zeros(self, at: GradientEdge, seed: Tensor) -> Tensor:
        """The value of a place that nothing arrives at."""
        classes = seed.shape[:1] if self._several else ()
        like = output_metadata(at.node)[at.output_nr]
        return seed.new_zeros(*classes, *like.shape, dtype=like.dtype)

    def pass_node(
        self,
        node: Node,
        edges: Sequence[tuple[Node | None, int]],
        operation: Operation | None,
        values: dict[int, Value],
        rules: BackwardRules | None,
        wanted: tuple[bool, ...],
    ) -> Sequence[Value | None]:
        """The value of each input of a node, given those of its outputs."""
        if operation is not None:
            results = self._pass_operation(operation, values[0], rules, wanted)
            dtype = operation.input_type
            if dtype is not None:
                return [None if result is None else _cast(result, dtype) for result in results]
            return [
                None
                if result is None or upstream is None
                else _cast(result, output_metadata(upstream)[nr].dtype)
                for (upstream, nr), result in zip(edges, results, strict=True)
            ]
        if rules is not None and REFUSED in (notes := node_metadata(node)):
            raise NoRuleError.at_operation(rules.name, *notes[REFUSED])
        if len(values) == 1:
            (value,), name = values.values(), node.name()
            simple = name in MOVES and name != internals.SLICE and len(edges) == 1
            if simple and not self._several and not isinstance(value, SparseRows):
                return (node(value),)  # type: ignore[operator]  # the most frequent case
            moved = self._pass_rows(node, name, value)
            if moved is not None:
                return moved
        return self._pass_routing(node, {nr: _to_dense(value) for nr, value in values.items()})

    def _pass_operation(
        self,
        operation: Operation,
        value: Value,
        rules: BackwardRules | None,
        wanted: tuple[bool, ...],
    ) -> Sequence[Value | None]:
        if isinstance(value, SparseRows):
            return self._pass_sparse(operation, value, rules, wanted)
        return self._pass_dense(operation, value, rules, wanted)

    def _pass_sparse(
        self,
        operation: Operation,
        value: SparseRows,
        rules: BackwardRules | None,
        wanted: tuple[bool, ...],
    ) -> Sequence[Value | None]:
        """Pass an operation by some of its rows, where that is possible."""
        may_narrow = rules is None or rules.supports_partial
        narrowed = operation.narrow_rows(*value.range) if may_narrow else None
        if narrowed is None:
            return self._pass_dense(operation, value.to_dense(), rules, wanted)
        operation, shapes = narrowed
        results = self._pass_dense(operation, value.rows, rules, wanted)
        dim, start = value.dim, value.start
        return [
            r if r is None or s is None else SparseRows(r, dim, start, s)
            for r, s in zip(results, shapes, strict=True)
        ]

    def _pass_dense(
        self,
        operation: Operation,
        value: Tensor,
        rules: BackwardRules | None,
        wanted: tuple[bool, ...],
    ) -> Sequence[Tensor | None]:
        if rules is None:
            operation.wanted = wanted
            read, classes = operation.gradient, not self._several or operation.supports_classes
        else:
            operation.wanted = wanted if rules.supports_partial else ()
            if not self._several:
                results: Sequence[Tensor | None] = rules.propagate(operation, value)
                operation.wanted = ()
                return results
            read = partial(rules.propagate, operation)
            classes = rules.supports_classes(operation)
        results = read(value) if classes else self._map_classes(read, [value])
        operation.wanted = ()
        return results

    def _pass_routing(self, node: Node, values: dict[int, Tensor]) -> list[Tensor | None]:
        """Pass a node of autograd's own, which only moves numbers, or knows gradients alone."""
        numbers, given = list(values), list(values.values())
        outputs = len(output_metadata(node))
        if outputs == 1 and not self._several:
            return fit_to_inputs(node, internals.run_node(node, given))

        def run(*some: Tensor) -> tuple[Tensor | None, ...]:
            grads: list[Tensor | None] = [None] * outputs
            for number, grad in zip(numbers, some, strict=True):
                grads[number] = grad
            return tuple(fit_to_inputs(node, internals.run_node(node, grads)))

        return self._map_classes(run, given)

    def _map_classes(
        self, read: Callable[..., tuple[Tensor | None, ...]], given: list[Tensor]
    ) -> list[Tensor | None]:
        if not self._several:
            return list(read(*given))
        return list(internals.batched_map(lambda *some: tuple(read(*some)))(*given))

    def _pass_rows(self, node: Node, name: str, value: Value) -> Sequence[Value] | None:
        """Pass a node that picks or moves rows; None where it is another."""
        if name in (internals.SELECT, internals.SLICE) and not isinstance(value, SparseRows):
            return self._pick_rows(node, name, value)
        if not isinstance(value, SparseRows) or name not in MOVES:
            return None
        moved = MOVES[name](node, value)
        if moved is None or moved.shape[0] != self._batch or moved.dim == -len(moved.shape):
            return None
        # A node with two inputs adds a constant here, which leads nowhere.
        return [moved] * len(node.next_functions)

    def _pick_rows(self, node: Node, name: str, value: Tensor) -> Sequence[Value] | None:
        shape = internals.saved_sizes(node)
        dim = internals.saved_dim(node) % len(shape)
        if dim == 0 or shape[0] != self._batch:
            return None
        if name == internals.SELECT:
            start = internals.saved_index(node) % shape[dim]
            return [SparseRows(value.unsqueeze(dim - len(shape)), dim - len(shape), start, shape)]
        # As written in Python: from the end if negative, and perhaps before the beginning.
        start, *_ = slice(internals.saved_start(node), None).indices(shape[dim])
        length = value.shape[dim - len(shape)]
        if internals.saved_step(node) != 1 or length == shape[dim]:
            return None
        return [SparseRows(value, dim - len(shape), start, shape)]


def fit_to_inputs(node: Node, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients in the shapes and types of what they belong to, which nodes leave to the engine."""
    fitting: list[Tensor | None] = []
    for (upstream, nr), grad in zip(node.next_functions, grads, strict=True):
        if upstream is not None and grad is not None:
            like = output_metadata(upstream)[nr]
            if tuple(grad.shape) != tuple(like.shape):
                grad = grad.sum_to_size(like.shape)
            grad = grad if grad.dtype == like.dtype else grad.to(like.dtype)
        fitting.append(grad)
    return fitting
