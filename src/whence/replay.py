"""Explanations of inputs of one shape, recorded as a CUDA graph and run again.

A GPU waits for Python, which asks for thousands of short kernels one by one. A graph holds all of
them, from the pixels to the scores, and is started with a single call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from whence.layout import Layout

# A graph keeps the memory that it works in.
_MOST = 3


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


class Replays:
    """The graphs of one model.

    Args:
        model: Where its weights are is part of what a graph knows.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, _Graph | None] = OrderedDict()

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
            inputs: On one GPU.
            compute: Does it, asking for kernels only: it waits for none, and copies nothing to the
                GPU. The second time that it is wanted it is recorded, from the third on replayed.

        Returns:
            The result; None the first time, if it cannot be recorded, and where it is not sound.
        """
        devices = {tensor.device for tensor in (*inputs.values(), *self._weights())}
        if len(devices) != 1:
            return None  # a graph holds what one GPU does
        # A graph works in memory of its own, for one at a time.
        with self._lock, torch.cuda.device_of(next(iter(inputs.values()))):  # type: ignore[no-untyped-call]
            return self._run(what, inputs, compute)

    def _run(
        self,
        what: Hashable,
        inputs: Mapping[str, Tensor],
        compute: Callable[[Mapping[str, Tensor]], Found],
    ) -> Found | None:
        facts = tuple((name, *_facts(x)) for name, x in inputs.items())
        weights = tuple((x.data_ptr(), *_facts(x)) for x in self._weights())
        key = what, facts, self._model.training, hash(weights)
        if key not in self._known:
            self._known[key] = _Graph(inputs, compute)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
            return None
        self._known.move_to_end(key)
        graph = self._known[key]
        if graph is None:
            return None
        try:
            found = graph(inputs)
        except RuntimeError:
            # What the model does cannot be recorded: it asks the GPU for a value, say.
            self._known[key] = None
            torch.cuda.synchronize()
            return None
        return found if bool(found.sound) else None

    def _weights(self) -> list[Tensor]:
        return [*self._model.parameters(), *self._model.buffers()]


def _facts(x: Tensor) -> tuple[tuple[int, ...], torch.dtype, torch.device]:
    return tuple(x.shape), x.dtype, x.device


class _Graph:
    """One recorded computation; it is recorded when it is called first."""

    def __init__(
        self, inputs: Mapping[str, Tensor], compute: Callable[[Mapping[str, Tensor]], Found]
    ) -> None:
        self._inputs = {name: torch.empty_like(x) for name, x in inputs.items()}
        self._compute: Callable[[Mapping[str, Tensor]], Found] | None = compute
        self._graph = torch.cuda.CUDAGraph()
        self._found: Found | None = None

    def __call__(self, inputs: Mapping[str, Tensor]) -> Found:
        for name, given in inputs.items():
            self._inputs[name].copy_(given.detach())
        if self._found is None:
            self._record()
        assert self._found is not None
        self._graph.replay()
        scores, classes, logits, sound, layout = self._found
        return Found(scores.clone(), classes.clone(), logits.clone(), sound, layout)

    def _record(self) -> None:
        assert self._compute is not None
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._compute(self._inputs)  # libraries set themselves up when they are first used
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(self._graph):
            self._found = self._compute(self._inputs)
        self._compute = None
