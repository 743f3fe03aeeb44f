"""A function of the user's own as a target: any scalar of what a model returns."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.torch_internals import without_torch_function
from whence.errors import WhenceError
from whence.targets.base import Place, Scalar, Target, TargetContext

Function = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class FunctionTarget(Target):
    """What a function ``f(outputs, inputs) -> (batch,)`` gives."""

    function: Function

    @override
    def make_place(self, context: TargetContext) -> Place:
        return FunctionPlace(self.function, context)

    @override
    def resolve(self, place: Place, read: Tensor, context: TargetContext) -> list[Scalar]:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        named = "the function" if name == "<lambda>" else name
        return [FunctionScalar(place, self.function, context, named)]


class FunctionPlace(Place):
    """All tensors of a model's output that a function depends on, as one row for each sample."""

    def __init__(self, function: Function, context: TargetContext) -> None:
        self._function, self._context = function, context
        self._first: Any = None
        self._used: dict[int, torch.Size] = {}

    @property
    def key(self) -> object:
        """The function itself."""
        return "function", self._function

    @override
    def find(self, returned: Any) -> Tensor:
        floats = [x for x in _list_tensors(returned) if x.is_floating_point() and x.dim() > 1]
        return torch.cat([x.flatten(1) for x in floats if len(x) == len(floats[0])], 1)

    @override
    def read(self, returned: Any) -> Tensor:
        tensors = _list_tensors(returned)
        if not self._used:
            with without_torch_function():
                self._first = _map_tensors(returned, lambda _, x: x.detach())
                self._used = {n: tensors[n].shape[1:] for n in self._find_used()}
        parts = [tensors[n].flatten(1) for n in self._used]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _find_used(self) -> list[int]:
        """Which tensors the function depends on, found by its gradient."""
        batch, leaves = self._context.batch, {}

        def make_leaf(number: int, x: Tensor) -> Tensor:
            if x.is_floating_point():
                x = leaves[number] = x.clone().requires_grad_()
            return x

        with torch.enable_grad():
            returned = _map_tensors(self._first, make_leaf)
            inputs = self._context.select_inputs(torch.arange(batch))
            values = call_function(self._function, returned, inputs, batch)
            found: Any = [None] * len(leaves)
            if values.requires_grad:
                every = list(leaves.values())
                found = torch.autograd.grad(values.sum(), every, allow_unused=True)
        used = [n for n, gradient in zip(leaves, found, strict=True) if gradient is not None]
        if not used:
            raise WhenceError(
                "The target function does not depend on the model's output in a way that has a "
                "gradient."
            )
        for n in used:
            if leaves[n].dim() < 1 or len(leaves[n]) != batch:
                raise WhenceError(
                    f"The target function reads an output of shape {tuple(leaves[n].shape)}, which "
                    f"has not one row for each of {batch} sample(s)."
                )
        return used

    def rebuild(self, read: Tensor, samples: Tensor) -> Any:
        """What the model returned for some samples, with these values in it."""
        sizes = [shape.numel() for shape in self._used.values()]
        parts = dict(zip(self._used, torch.split(read, sizes, 1), strict=True))
        batch = self._context.batch

        def replace(number: int, x: Tensor) -> Tensor:
            if number in parts:
                return parts[number].reshape(-1, *self._used[number])
            return x[samples.to(x.device)] if x.dim() and len(x) == batch else x

        return _map_tensors(self._first, replace)


def _map_tensors(value: Any, change: Callable[[int, Tensor], Tensor]) -> Any:
    """A nested value with other tensors; each is given with its number."""
    numbers = itertools.count()

    def change_inside(inner: Any) -> Any:
        if isinstance(inner, Tensor):
            return change(next(numbers), inner)
        if isinstance(inner, MutableMapping):
            copied = copy.copy(inner)
            for name, one in inner.items():
                copied[name] = change_inside(one)
            return copied
        if isinstance(inner, tuple | list):
            every = [change_inside(one) for one in inner]
            return type(inner)(*every) if hasattr(inner, "_fields") else type(inner)(every)
        if dataclasses.is_dataclass(inner) and not isinstance(inner, type):
            fields = {f.name: getattr(inner, f.name) for f in dataclasses.fields(inner) if f.init}
            return dataclasses.replace(inner, **{n: change_inside(x) for n, x in fields.items()})
        return inner

    return change_inside(value)


def _list_tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def note(_: int, x: Tensor) -> Tensor:
        found.append(x)
        return x

    _map_tensors(value, note)
    return found


class FunctionScalar(Scalar):
    """What a function gives."""

    def __init__(self, place: Place, function: Function, context: TargetContext, name: str) -> None:
        self.place, self._function, self._context = place, function, context
        self.indices, self.names = [0] * context.batch, [name] * context.batch

    @override
    def values(self, read: Tensor, samples: Tensor) -> Tensor:
        place = self.place
        if not isinstance(place, FunctionPlace):
            raise TypeError("A function is read at its own place.")
        inputs = self._context.select_inputs(samples)
        return call_function(self._function, place.rebuild(read, samples), inputs, len(read))


def call_function(function: Function, outputs: Any, inputs: Any, batch: int) -> Tensor:
    """Call a user's function, and refuse what is not one number for each sample.

    Raises:
        WhenceError: The function fails, or gives something else.
    """
    try:
        values = function(outputs, inputs)
    except WhenceError:
        raise
    except Exception as error:  # the function is the user's own
        raise WhenceError(
            f"The target function f(outputs, inputs) failed: {type(error).__name__}: {error}."
        ) from error
    if not isinstance(values, Tensor) or tuple(values.shape) != (batch,):
        given = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise WhenceError(
            f"A target function f(outputs, inputs) returns one number for each sample, of shape "
            f"({batch},), not {given}."
        )
    if not values.is_floating_point() or not torch.isfinite(values).all():
        raise WhenceError("The target function gives values that are no finite numbers.")
    return values
