"""ProgramCache: the compiled programs of one model, by request and shapes of the inputs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from whence.inputs.arguments import list_tensors

# So many are kept: several methods that take turns must not push each other out, but each CUDA
# graph keeps the memory that it works in.
_MAX_PROGRAMS = 8

Entry = TypeVar("Entry")


class ProgramCache(Generic[Entry]):
    """Compiled programs, the least recently used of which is dropped first.

    Args:
        model: Where its weights are is part of every key.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._programs: OrderedDict[Hashable, Entry | None] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._programs

    def is_on_one_device(self, inputs: Mapping[str, Tensor]) -> bool:
        """Whether inputs and weights are on one device, as a program needs them."""
        tensors = (*inputs.values(), *list_tensors(self._model))
        return len({tensor.device for tensor in tensors}) == 1

    @contextmanager
    def lock(self, inputs: Mapping[str, Tensor]) -> Iterator[None]:
        """One at a time: a program works in memory of its own."""
        with self._lock, torch.cuda.device_of(next(iter(inputs.values()))):  # type: ignore[no-untyped-call]
            yield

    def make_key(self, request: Hashable, inputs: Mapping[str, Tensor]) -> Hashable:
        """The key of a request for inputs of these shapes, with the weights where they are now."""
        shapes = tuple((name, tuple(x.shape), x.dtype) for name, x in inputs.items())
        weights = list_tensors(self._model)
        places = hash(tuple((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in weights))
        return request, shapes, self._model.training, places

    def store(self, key: Hashable, program: Entry | None) -> None:
        """Keep a program; None if the request cannot be compiled."""
        if len(self._programs) >= _MAX_PROGRAMS:
            self._programs.popitem(last=False)
        self._programs[key] = program

    def find(self, key: Hashable) -> Entry | None:
        """The program of a key, which is then the most recently used."""
        self._programs.move_to_end(key)
        return self._programs[key]
