"""Activations: what an operation keeps of the forward pass, and can free and get again."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor


class ActivationSource(Protocol):
    """Has operations computed again whose activations were freed."""

    def fetch(self, index: int, whole: bool) -> Activations:
        """An operation by its number, with its activations; perhaps only if gradients read them."""


class Activations:
    """What an operation keeps of the forward pass.

    Attributes:
        activations: Names of the attributes that can be freed and computed again.
        segments: Frees them where memory is short, and has them computed again.
        index: The number of the operation.
        keeps_output: Whether the output stays, because something else keeps it as well.
        read_by_gradient: Names of those whose values decide the gradient; None if all may.
        is_set_aside: Whether some were freed.
    """

    activations: tuple[str, ...] = ("output",)
    segments: ActivationSource | None = None
    index = 0
    keeps_output = False
    read_by_gradient: tuple[str, ...] | None = None
    is_set_aside = False
    _freed: tuple[str, ...] = ()

    def set_aside(self, *, with_sums: bool = False, unread: bool = False) -> None:
        """Free the activations; their shapes stay known.

        Args:
            with_sums: Whether to free outputs also where they are no activations.
            unread: Whether to free only what gradients do not read.
        """
        names = dict.fromkeys((*self.activations, "output") if with_sums else self.activations)
        read = names if unread and self.read_by_gradient is None else self.read_by_gradient or ()
        stay = {*(read if unread else ()), *(("output",) if self.keeps_output else ())}
        self._freed = tuple(name for name in names if name not in stay)
        if not self._freed:
            return
        for name in self._freed:
            if hasattr(self, name):
                setattr(self, name, to_shapes(getattr(self, name)))
        self.is_set_aside = True

    def take_over(self, computed: Activations) -> bool:
        """Keep the activations of the same operation that was computed again; false if it has all.

        All are taken, also those that were not freed: they belong together.
        """
        if not self.is_set_aside:
            return False
        for name in dict.fromkeys((*self.activations, *self._freed)):
            stays = name == "output" and self.keeps_output
            if hasattr(self, name) and not stays:
                setattr(self, name, getattr(computed, name))
        self.is_set_aside = False
        return True

    def fetch(self, *, whole: bool = True) -> Self:
        """The operation itself, with its activations in memory wherever they were freed.

        Args:
            whole: Whether they are wanted also where the gradient does not read them.
        """
        if self.is_set_aside and self.segments is not None:
            kept = self.segments.fetch(self.index, whole)
            if kept is not self:  # this is a copy
                self.take_over(kept)
        return self


_SomeTensors = TypeVar("_SomeTensors", Tensor, tuple[Tensor, ...])


def to_shapes(value: _SomeTensors) -> _SomeTensors:
    """Tensors of the same shapes and types that hold no numbers."""
    if isinstance(value, tuple):
        return tuple(map(to_shapes, value))
    return _make_shape(value.shape, value.dtype)


@lru_cache(512)
def _make_shape(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
