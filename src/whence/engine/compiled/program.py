"""What is done to inputs of one shape, written down once and compiled.

Explaining asks for thousands of small steps: torch reads and writes whole tensors in each, and
Python comes in between. Here a computation is run once while every step, of the way up and of the
way down, is written down; torch's compiler then makes few kernels of many steps. A Transformer
repeats itself layer by layer, and so do the steps: they are cut where they repeat, and each piece
is compiled once for all of its repetitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

# Fewer steps than this are not worth a piece of their own.
_SHORTEST = 24
_PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default")
# Ways to look at values that leave no step behind.
_SHOWING = frozenset(("tolist", "numpy", "__array__", "__dlpack__", "__repr__"))


class _State(threading.local):
    """What this thread is doing."""

    writes_down = False
    answers: list[Any] | None = None
    assumed: list[Tensor] | None = None


_state = _State()


def is_written_down(tensor: Tensor) -> bool:
    """Whether what is done to a tensor is kept for later, so that no value can be looked at."""
    return _state.writes_down or (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def is_noted() -> bool:
    """Whether what is done now is to be compared with what is written down of it."""
    return _state.answers is not None


def answer(question: Tensor) -> Any:
    """The value of a tensor that decides what is done: a truth value, or a number.

    Where values cannot be looked at, it is what it was when answers were noted, and it is checked
    later that it was right to assume so.
    """
    if not is_written_down(question):
        found = question.item()
        if _state.answers is not None:
            _state.answers.append(found)
        return found
    if not _state.answers or _state.assumed is None:
        raise RuntimeError("a value is asked for that was not noted before")
    found = _state.answers.pop(0)
    _state.assumed.append(question == found)
    return found


@contextmanager
def noted() -> Iterator[list[Any]]:
    """Note what is answered, so that the same computation can be written down."""
    before, _state.answers = _state.answers, []
    try:
        yield _state.answers
    finally:
        _state.answers = before


@contextmanager
def written_down(answers: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Have what is done kept for later, with answers as they were noted.

    Yields:
        Truth values, for each answer if it is right.
    """
    before = _state.writes_down, _state.answers, _state.assumed
    _state.writes_down, _state.answers, _state.assumed = True, list(answers), []
    try:
        with _Blind():
            yield _state.assumed
    finally:
        _state.writes_down, _state.answers, _state.assumed = before


class _Blind(TorchFunctionMode):
    """While on, values cannot be looked at: what is done would be right for these alone."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _SHOWING:
            raise RuntimeError(f"what is done depends on values that are looked at by `{name}`")
        return func(*args, **(kwargs or {}))


class Program:
    """A computation as compiled pieces.

    Args:
        compute: Takes and returns tensors; it looks at no values.
        inputs: Tensors like those that it will be given.
    """

    def __init__(self, compute: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        written, self._constants, self._structure = _written(compute, inputs)
        self._pieces, self._returned = _pieces(written)
        self._given = [node.name for node in written.nodes if node.op == "placeholder"]
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        """Run it; what is not yet compiled is compiled."""
        known: dict[str, Any] = dict(zip(self._given, (*inputs, *self._constants), strict=True))
        with torch.no_grad():
            for piece in self._pieces:
                found = self._run(piece, [known[name] for name in piece.reads])
                known.update(zip(piece.makes, found, strict=True))
                del found
                for name in piece.last:
                    del known[name]
        return tree_unflatten([known[name] for name in self._returned], self._structure)

    def _run(self, piece: _Piece, args: list[Any]) -> Sequence[Any]:
        key = piece.code, *((x.shape, x.stride(), x.dtype, x.device) for x in args)
        if key not in self._compiled:
            self._compiled[key] = _compiled(fx.GraphModule({}, piece.graph), args)
        found: Sequence[Any] = self._compiled[key](*args)
        return found


def _compiled(steps: fx.GraphModule, args: list[Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch._inductor.compile(steps, args)
    return compiled


class _Piece(NamedTuple):
    """Some steps in a row.

    Attributes:
        graph: The steps.
        code: The same as text, which is equal for pieces that do the same.
        reads: Names of the values that they need.
        makes: Names of the values that are needed of them.
        last: Names of values that nobody needs afterwards.
    """

    graph: fx.Graph
    code: str
    reads: list[str]
    makes: list[str]
    last: list[str]


# Writing down -----------------------------------------------------------------------------------


def _written(
    compute: Callable[..., Any], inputs: Sequence[Tensor]
) -> tuple[fx.Graph, list[Tensor], Any]:
    """The steps of a computation, the constants it reads beside its inputs, and what it returns.

    No step writes into a tensor that another one has made.
    """
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    structure: Any = None

    def flat(*given: Tensor) -> list[Tensor]:
        nonlocal structure
        found, structure = tree_flatten(compute(*given))
        return found

    steps = make_fx(flat)(*inputs)
    _check_shapes(steps.graph)
    constants = _lifted(steps)
    _without_detours(steps.graph)
    for node in steps.graph.nodes:
        # What is no longer written in place may lie otherwise in memory, and have no such view.
        if node.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            node.target = torch.ops.aten.reshape.default
    steps.recompile()
    with torch.no_grad():
        plain = make_fx(functionalize(steps, remove="mutations"), tracing_mode="fake")
        steps = plain(*inputs, *constants)
    _without_detours(steps.graph)
    return steps.graph, constants, structure


def _check_shapes(graph: fx.Graph) -> None:
    """See that no shape depends on values: those of now would be kept."""
    for node in graph.nodes:
        picks = torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())
        if picks and not (node.target is torch.ops.aten.index.Tensor and not _has_mask(node)):
            raise RuntimeError(f"the shape of what `{node.target}` gives depends on values")


def _has_mask(index: fx.Node) -> bool:
    """Whether an index picks what is true, so that there may be more or less of it."""
    found = (node.meta.get("tensor_meta") for node in index.all_input_nodes[1:])
    return any(meta is None or meta.dtype in (torch.bool, torch.uint8) for meta in found)


def _lifted(steps: fx.GraphModule) -> list[Tensor]:
    """Make arguments of what the steps hold, such as weights."""
    constants: dict[str, tuple[Tensor, fx.Node]] = {}
    last = [node for node in steps.graph.nodes if node.op == "placeholder"][-1]
    for node in [node for node in steps.graph.nodes if node.op == "get_attr"]:
        if node.target not in constants:
            with steps.graph.inserting_after(last):
                last = steps.graph.placeholder(f"held_{len(constants)}")
            constants[node.target] = getattr(steps, node.target).detach(), last
        node.replace_all_uses_with(constants[node.target][1])
        steps.graph.erase_node(node)
    return [constant for constant, _ in constants.values()]


def _without_detours(graph: fx.Graph) -> None:
    """Leave out what is not used, and what only matters to autograd."""
    for node in list(graph.nodes):
        if node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()


# Cutting ----------------------------------------------------------------------------------------


def _pieces(graph: fx.Graph) -> tuple[list[_Piece], list[str]]:
    """The steps in pieces, many of which are equal, and the names of what is returned."""
    steps = [node for node in graph.nodes if node.op == "call_function"]
    returned = [node.name for node in cast("list[fx.Node]", graph.output_node().args[0])]
    cuts = sorted({0, *_cuts(steps), len(steps)})
    used_last = _last_uses(steps, returned)
    pieces = []
    for start, stop in pairwise(cuts):
        pieces.append(_piece(steps[start:stop], range(start, stop), used_last))
    return pieces, returned


def _last_uses(steps: list[fx.Node], returned: list[str]) -> dict[str, int]:
    """The number of the step that each value is used last by; of what is returned, beyond all."""
    last = {node.name: at for at, node in enumerate(steps)}
    for at, step in enumerate(steps):
        last.update((node.name, at) for node in step.all_input_nodes)
    last.update((name, len(steps)) for name in returned)
    return last


def _piece(steps: list[fx.Node], numbers: range, used_last: dict[str, int]) -> _Piece:
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    inside = set(steps)
    reads = dict.fromkeys(x for step in steps for x in step.all_input_nodes if x not in inside)
    for number, node in enumerate(reads):
        copies[node] = graph.placeholder(f"given_{number}")
    for number, step in enumerate(steps):
        copies[step] = graph.node_copy(step, copies.__getitem__)
        copies[step].name = f"step_{number}"
    makes = [step for step in steps if used_last[step.name] >= numbers.stop]
    graph.output([copies[step] for step in makes])
    last = [node.name for node in reads if used_last[node.name] in numbers]
    given, made = ([node.name for node in nodes] for nodes in (reads, makes))
    return _Piece(graph, str(graph), given, made, last)


def _cuts(steps: list[fx.Node], offset: int = 0) -> Iterator[int]:
    """Where to cut so that pieces are equal: between repetitions, of which there may be several."""
    found = _repetition(steps)
    if found is None:
        return
    start, period, times = found
    stop = start + period * times
    yield from (offset + start + period * n for n in range(times + 1))
    yield from _cuts(steps[:start], offset)
    yield from _cuts(steps[stop:], offset + stop)


def _repetition(steps: list[fx.Node]) -> tuple[int, int, int] | None:
    """Where the repetition that spares most begins, its length, and how often it is there."""
    kinds: dict[str, int] = {}
    codes = np.array([kinds.setdefault(_kind(step), len(kinds)) for step in steps])
    most, found = 0, None
    for period in range(_SHORTEST, len(codes) // 2 + 1):
        same = np.concatenate(([False], codes[:-period] == codes[period:], [False]))
        edges = np.flatnonzero(np.diff(same.astype(np.int8)))
        lengths = edges[1::2] - edges[::2]
        if not len(lengths):
            continue
        longest = int(lengths.argmax())
        spared = int(lengths[longest]) // period * period
        if spared > most:
            most, found = spared, (int(edges[2 * longest]), period, int(lengths[longest]))
    return None if found is None else _best_start(steps, *found)


def _best_start(steps: list[fx.Node], start: int, period: int, same: int) -> tuple[int, int, int]:
    """Shift a repetition to begin with a product, where the least passes from piece to piece."""
    spare = same % period
    starts = [start + n for n in range(spare + 1) if str(steps[start + n].target) in _PRODUCTS]
    best = min(starts or [start], key=lambda at: _passing(steps, at, period))
    return best, period, (start + same - best) // period + 1


def _passing(steps: list[fx.Node], at: int, period: int) -> int:
    """Bytes that were made in the period before a step and are used in the one after it."""
    before, after = set(steps[max(0, at - period) : at]), steps[at : at + period]
    passing = {node for step in after for node in step.all_input_nodes if node in before}
    return sum(_bytes(node) for node in passing)


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.nbytes if isinstance(value, Tensor) else 0


def _kind(step: fx.Node) -> str:
    """What a step does, whatever it does it to."""
    value = step.meta.get("val")
    made = (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else ()
    plain = fx.node.map_arg(step.args, lambda _: None)
    return f"{step.target} {plain} {made}"
