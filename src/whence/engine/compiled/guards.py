"""Guards of compiled programs: values are noted in an eager run, then assumed and checked.

A program is recorded without looking at values. Where what is computed depends on one, the value of
an eager run is assumed, and the program computes a condition that is true while it still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from whence.tracing.ops.guard import Guard

# Ways to look at values that leave no operator in a graph.
_CONVERSIONS = frozenset(("tolist", "numpy", "__array__", "__dlpack__", "__repr__"))


class NotingGuard(Guard):
    """Looks at values and notes them, in an eager run that a program is compared with.

    Attributes:
        noted: The values, in the order they were looked at.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[bool | int | float] = []

    @override
    def look_at(self, value: Tensor) -> bool | int | float:
        self.noted.append(value.item())
        return self.noted[-1]

    @override
    def shortcut_fails(self, failure: Tensor) -> bool:
        return self.defer_shortcut(failure)


class AssumingGuard(Guard):
    """Assumes values that were noted, while a program is recorded.

    Args:
        noted: The values.

    Attributes:
        conditions: For each value a tensor that is true while it holds.
    """

    sees_values = False

    def __init__(self, noted: Sequence[bool | int | float]) -> None:
        super().__init__()
        self._noted = list(noted)
        self.conditions: list[Tensor] = []

    @override
    def look_at(self, value: Tensor) -> bool | int | float:
        if not self._noted:
            raise RuntimeError("a value is looked at that was not looked at before")
        assumed = self._noted.pop(0)
        self.conditions.append(value == assumed)
        return assumed

    @override
    def shortcut_fails(self, failure: Tensor) -> bool:
        return self.defer_shortcut(failure)


class RefuseConversions(TorchFunctionMode):
    """While on, tensors cannot be converted to Python: a program would be right for these alone."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CONVERSIONS:
            raise RuntimeError(f"what is computed depends on values that `{name}` looks at")
        return func(*args, **(kwargs or {}))


def all_hold(conditions: Sequence[Tensor]) -> Tensor:
    """A single truth value: whether all conditions hold."""
    return torch.stack(list(conditions)).all()
