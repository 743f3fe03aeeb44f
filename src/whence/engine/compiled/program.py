"""Run a recorded computation as compiled regions, each compiled once for all repetitions.

An explanation consists of thousands of small operators. Run one by one, each reads and writes whole
tensors, with Python in between; torch's compiler fuses many of them into few kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from whence._util.torch_internals import compile_graph, unflatten_tree
from whence.engine.compiled.graph import record_graph
from whence.engine.compiled.regions import Region, split_regions

Output = TypeVar("Output")
# A region's code, with shape, strides, type and device of each of its inputs.
_Key = tuple[str, tuple[tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device], ...]]
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


class Program(Generic[Output]):
    """A computation on tensors of fixed shapes, compiled region by region at first use.

    Args:
        compute: Takes tensors and returns containers of tensors; it reads no values.
        inputs: Example arguments, whose shapes the program is for.
    """

    def __init__(self, compute: Callable[..., Output], inputs: Sequence[Tensor]) -> None:
        graph, self._constants, self._structure = record_graph(compute, inputs)
        self._regions, self._returned = split_regions(graph)
        self._placeholders = [node.name for node in graph.find_nodes(op="placeholder")]
        self._compiled: dict[_Key, Callable[..., Sequence[Tensor]]] = {}

    def __call__(self, *inputs: Tensor) -> Output:
        """Run the computation on other values."""
        values = dict(zip(self._placeholders, (*inputs, *self._constants), strict=True))
        with torch.no_grad():
            for region in self._regions:
                results = self._run(region, [values[name] for name in region.inputs])
                values.update(zip(region.outputs, results, strict=True))
                del results
                for name in region.released:
                    del values[name]
        output: Output = unflatten_tree([values[name] for name in self._returned], self._structure)
        return output

    def _run(self, region: Region, args: list[Tensor]) -> Sequence[Tensor]:
        key = region.code, tuple((x.shape, x.stride(), x.dtype, x.device) for x in args)
        if key not in self._compiled:
            self._compiled[key] = compile_graph(fx.GraphModule({}, region.graph), args)
        return self._compiled[key](*args)
