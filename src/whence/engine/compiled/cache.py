"""Explanations of inputs of one shape, compiled and run again.

On a GPU what was compiled is recorded as a CUDA graph, too. A GPU waits for Python, which asks for
hundreds of short kernels one by one; a graph holds all of them, from the pixels to the scores, and
is started with a single call.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from whence.engine.compiled import program as compiling
from whence.layout import Layout
from whence.tracing.replica import tensors_of

# So many are kept ready: several methods that take turns must not push each other out, but each
# graph keeps the memory that it works in.
_MOST = 8
# So many requests and shapes are remembered to have been seen once, which takes next to nothing.
_SEEN = 1000
# How far scores may be from those of the plain way, which rounds otherwise: in bfloat16 by 0.01.
_APART = 0.05


class Found(NamedTuple):
    """What is computed of a batch.

    Attributes:
        scores: (batch, classes, units).
        classes: (batch, classes), the explained class indices.
        logits: (batch, all classes).
        sound: A single truth value: whether all is finite and no shortcut was too coarse.
        layout: Where tokens stand on the input.
    """

    scores: Tensor
    classes: Tensor
    logits: Tensor
    sound: Tensor
    layout: Layout

    def of(self, tensors: Sequence[Tensor]) -> Found:
        """The same with other tensors."""
        scores, classes, logits, sound = tensors
        return Found(scores, classes, logits, sound, self.layout)


_Ready = Callable[[Mapping[str, Tensor]], Found]


class Replays:
    """What was compiled for one model.

    Args:
        model: Where its weights are is part of what was compiled.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._seen: dict[Hashable, None] = {}
        self._ready: OrderedDict[Hashable, _Ready | None] = OrderedDict()

    def __reduce__(self) -> tuple[type[Replays], tuple[nn.Module]]:
        """A copy, which another process may want, begins anew."""
        return Replays, (self._model,)

    def run(
        self,
        what: Hashable,
        inputs: Mapping[str, Tensor],
        compute: Callable[[Mapping[str, Tensor]], Found],
    ) -> Found | None:
        """Compute something again that was computed before with inputs of the same shapes.

        Args:
            what: What else than the values of the inputs decides what is done.
            inputs: On one device.
            compute: Does it. It looks at no values but by `compiling.answer`. The second time that
                it is wanted it is also compiled, and from the third on that is what runs.

        Returns:
            The result, of which only what is sound can be trusted; None the first time, and if it
            cannot be compiled.
        """
        weights = tensors_of(self._model)
        if len({tensor.device for tensor in (*inputs.values(), *weights)}) != 1:
            return None  # a graph holds what one GPU does
        # What is compiled works in memory of its own, for one at a time.
        with self._lock, torch.cuda.device_of(next(iter(inputs.values()))):  # type: ignore[no-untyped-call]
            shapes = tuple((name, tuple(x.shape), x.dtype) for name, x in inputs.items())
            places = hash(tuple((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in weights))
            return self._run((what, shapes, self._model.training, places), inputs, compute)

    def _run(
        self,
        key: Hashable,
        inputs: Mapping[str, Tensor],
        compute: Callable[[Mapping[str, Tensor]], Found],
    ) -> Found | None:
        if key in self._ready:
            self._ready.move_to_end(key)
            run = self._ready[key]
            return None if run is None else run(inputs)
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > _SEEN:
                del self._seen[next(iter(self._seen))]
            return None
        with compiling.noted() as answers:
            expected = compute(inputs)
        if len(self._ready) >= _MOST:
            self._ready.popitem(last=False)
        self._ready[key] = _ready(compute, inputs, answers, expected)
        return expected


def _ready(
    compute: Callable[[Mapping[str, Tensor]], Found],
    inputs: Mapping[str, Tensor],
    answers: list[Any],
    expected: Found,
) -> Callable[[Mapping[str, Tensor]], Found] | None:
    """The computation for inputs of these shapes, compiled; None if that cannot be."""
    names = list(inputs)

    def tensors(*given: Tensor) -> tuple[Tensor, ...]:
        with compiling.written_down(answers) as right:
            found = compute(dict(zip(names, given, strict=True)))
            sound = torch.stack([found.sound, *right]).all()
        return found.scores, found.classes, found.logits, sound

    example = [x.detach().clone() for x in inputs.values()]
    on_gpu = example[0].is_cuda
    reasons = []
    for compiles in (True, False) if on_gpu else (True,):
        try:
            run = compiling.Program(tensors, example) if compiles else tensors
            ready = _Graph(run, example) if on_gpu else run
            found = expected.of(ready(*example))
        except Exception as error:  # compilers fail in ways of their own
            reasons.append(str(error).strip().split("\n")[0])
            if on_gpu:
                torch.cuda.synchronize()
            continue
        if _agree(found, expected):
            return lambda inputs: expected.of(ready(*inputs.values()))
        reasons.append("it would give other scores")
    warnings.warn(
        f"What is done to these inputs cannot be compiled here, so that fast=True makes no "
        f"difference to them: {reasons[0]}",
        stacklevel=2,
    )
    return None


def _agree(found: Found, expected: Found) -> bool:
    """Whether scores are the same but for rounding, even where neither can be trusted."""
    if bool(found.sound) != bool(expected.sound):
        return False
    if not torch.isfinite(expected.scores).all():
        return not torch.isfinite(found.scores).all()
    apart = (found.scores - expected.scores).norm()
    return bool(apart <= _APART * expected.scores.norm())


class _Graph:
    """A computation on a GPU, recorded as a CUDA graph.

    Args:
        compute: Asks for kernels only: it waits for none, and copies nothing to the GPU.
        inputs: Where the graph will find its inputs.
    """

    def __init__(
        self,
        compute: Callable[..., tuple[Tensor, ...]],
        inputs: list[Tensor],
    ) -> None:
        self._inputs = [x.clone() for x in inputs]
        self._graph = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        # Libraries set themselves up when they are first used, and compilers compile.
        with torch.cuda.stream(aside):
            compute(*self._inputs)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.empty_cache()
        with torch.cuda.graph(self._graph):
            self._found = compute(*self._inputs)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given.detach())
        self._graph.replay()
        return tuple(found.clone() for found in self._found)
