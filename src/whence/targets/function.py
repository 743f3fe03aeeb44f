"""A function of the user's own as a target: any scalar of what a model returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.torch_internals import TreeSpec, tree_flatten, tree_unflatten
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
        self._used: list[int] | None = None
        self._first: tuple[list[Any], TreeSpec] | None = None

    @property
    def key(self) -> object:
        """The function itself."""
        return "function", self._function

    @override
    def find(self, returned: Any) -> Tensor:
        leaves, _ = tree_flatten(returned)
        floats = [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point() and x.dim()]
        rows = len(floats[0]) if floats else 0
        return torch.cat([x.flatten(1) for x in floats if len(x) == rows and x.dim() > 1], 1)

    @override
    def read(self, returned: Any) -> Tensor:
        leaves, spec = tree_flatten(returned)
        if self._used is None:
            self._used = self._find_used(leaves, spec)
            kept = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
            self._first = kept, spec
            self._shapes = [leaves[n].shape[1:] for n in self._used]
        parts = [leaves[n].flatten(1) for n in self._used]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _find_used(self, leaves: list[Any], spec: TreeSpec) -> list[int]:
        """Which tensors the function depends on, found by its gradient."""
        batch = self._context.batch
        copies: list[Any] = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
        numbers = [
            n for n, x in enumerate(copies) if isinstance(x, Tensor) and x.is_floating_point()
        ]
        samples = torch.arange(batch)
        with torch.enable_grad():
            for n in numbers:
                copies[n] = copies[n].clone().requires_grad_()
            values = self._function(
                tree_unflatten(copies, spec), self._context.select_inputs(samples)
            )
            check_values(values, batch)
            found: Any = [None] * len(numbers)
            if values.requires_grad:
                wanted = [copies[n] for n in numbers]
                found = torch.autograd.grad(values.sum(), wanted, allow_unused=True)
        used = [n for n, gradient in zip(numbers, found, strict=True) if gradient is not None]
        if not used:
            raise WhenceError(
                "The target function does not depend on the model's output in a way that has a "
                "gradient."
            )
        for n in used:
            if copies[n].dim() < 1 or len(copies[n]) != batch:
                raise WhenceError(
                    f"The target function reads an output of shape {tuple(copies[n].shape)}, which "
                    f"has not one row for each of {batch} sample(s)."
                )
        return used

    def rebuild(self, read: Tensor, samples: Tensor) -> Any:
        """What the model returned for some samples, with these values in it."""
        if self._first is None or self._used is None:
            raise RuntimeError("Nothing has been read.")
        leaves, spec = self._first
        batch = self._context.batch
        rows: list[Any] = [
            x[samples.to(x.device)] if isinstance(x, Tensor) and x.dim() and len(x) == batch else x
            for x in leaves
        ]
        parts = read.split([shape.numel() for shape in self._shapes], 1)
        for n, shape, part in zip(self._used, self._shapes, parts, strict=True):
            rows[n] = part.reshape(-1, *shape)
        return tree_unflatten(rows, spec)


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
        values = self._function(place.rebuild(read, samples), self._context.select_inputs(samples))
        check_values(values, len(read))
        return values


def check_values(values: object, batch: int) -> None:
    """Refuse what is not one number for each sample.

    Raises:
        WhenceError: It is not.
    """
    if not isinstance(values, Tensor) or tuple(values.shape) != (batch,):
        given = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise WhenceError(
            f"A target function f(outputs, inputs) returns one number for each sample, of shape "
            f"({batch},), not {given}."
        )
    if not values.is_floating_point() or not torch.isfinite(values).all():
        raise WhenceError("The target function gives values that are no finite numbers.")
