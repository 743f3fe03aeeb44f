"""Operation: one step of the forward pass, as rules see it.

An operation keeps what its rules need: inputs, output, and the linear maps it is made of. It never
keeps a tensor that belongs to the graph, so no reference cycle holds memory back. Where memory is
short, `Activations` are freed, and computed again when they are read.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, Self, TypeGuard, TypeVar

import torch
from torch import Tensor

from whence.tracing.ops.guard import Guard

if TYPE_CHECKING:
    from whence.tracing.ops.sums import SkipAddition
    from whence.tracing.trace import Trace

Values = tuple[Tensor | None, ...]
Narrowed = tuple["Operation", tuple[torch.Size | None, ...]]
_SomeTensors = TypeVar("_SomeTensors", Tensor, tuple[Tensor, ...])


class BackwardRules(Protocol):
    """How values pass operations backward, in place of plain gradients."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def supports_partial(self) -> bool:
        """Whether `propagate` may be given some rows of an operation, or some of its inputs."""

    @property
    def scales_by_sums(self) -> bool:
        """Whether values are scaled so that they keep their sum."""

    @property
    def reads_linear(self) -> bool:
        """Whether it matters what linear maps and sums have read and put out."""

    @property
    def attention_factors(self) -> tuple[float, float, float] | None:
        """Factors of an attention's gradients by queries, keys and values, if that is all."""

    def prepare(self, trace: Trace) -> None:
        """Find in a recorded pass what rules must know of its operations."""

    def propagate(self, operation: Operation, value: Tensor) -> Values:
        """The value of each input of an operation, given that of its output."""

    def supports_classes(self, operation: Operation) -> bool:
        """Whether `propagate` may be given several classes at once, as a first dimension."""


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


class Operation(Activations):
    """One operation of the forward pass.

    Attributes:
        kind: The name under which a rule set holds its rule.
        name: The torch function or module that computed it, for messages.
        where: The module it was called in, for messages.
        constants: Names of the attributes that hold weights and other constants.
        guard: Looks at values.
        batch: Number of samples of the forward pass.
        output: The output; not part of the graph.
        input_type: The type of its inputs; None if it is not known, or they have several.
        reader_count: How many recorded operations read the output.
        index: Its number among the operations of the forward pass.
        in_attention: Whether it is the softmax of an attention, or its product with the values.
        wanted: For each input, whether its value is wanted; empty if all are.
        skip: Its part in the sum of a skip connection and its branches; None if it has none, or if
            skip connections have not been looked for.
    """

    kind = ""
    constants: tuple[str, ...] = ()
    guard: Guard = Guard()
    batch: int = 1
    output: Tensor
    input_type: torch.dtype | None = None
    reader_count = 0
    index = 0
    in_attention = False
    wanted: tuple[bool, ...] = ()
    skip: SkipAddition | None = None

    def __init__(self, name: str = "", where: str = "") -> None:
        self.name = name or type(self).__name__.lower()
        self.where = where

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute the output and keep what `gradient` and the rules need."""
        raise NotImplementedError

    def gradient(self, output: Tensor) -> Values:
        """Gradients of the inputs, given that of the output."""
        raise NotImplementedError

    @property
    def supports_classes(self) -> bool:
        """Whether values may have classes as a dimension before their own.

        Where not, classes are propagated one at a time.
        """
        return False

    def sum_to_shape(self, value: Tensor, shape: torch.Size) -> Tensor:
        """Undo broadcasting, by summing; classes before the dimensions of the output stay."""
        extra = value.dim() - self.output.dim()
        if value.shape[extra:] == shape:
            return value
        ones = (1,) * (self.output.dim() - len(shape))
        classes = value.shape[:extra]
        return value.sum_to_size(*classes, *ones, *shape).reshape((*classes, *shape))

    def is_wanted(self, number: int) -> bool:
        """Whether the value of an input is wanted; a rule may give None for it if not."""
        return not self.wanted or self.wanted[number]

    def narrow_rows(
        self,
        dim: int,  # noqa: ARG002  for subclasses
        start: int,  # noqa: ARG002
        length: int,  # noqa: ARG002
    ) -> Narrowed | None:
        """The operation that makes only some rows of the output; None if it cannot be narrowed.

        Args:
            dim: The dimension of the rows, counted from the end.
            start: The first row.
            length: How many rows.

        Returns:
            The operation, and for each of its inputs the shape of the whole if it is narrowed to
            the same rows, or None if all of it is read.
        """
        return None

    def _narrow(self, names: tuple[str, ...], dim: int, start: int, length: int) -> Self:
        small = copy.copy(self)
        for name in names:
            setattr(small, name, getattr(self, name).narrow(dim, start, length))
        return small

    def release(self) -> None:
        """Free all tensors, when nothing will be read backward any more."""
        kept = self.__dict__
        for name in (*self.activations, *self.constants, "output"):
            kept.pop(name, None)

    def preserve(self, overwritten: Tensor) -> None:
        """Copy what is kept of a tensor's memory before the model overwrites it."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and shares_memory(value, overwritten):
                setattr(self, name, value.clone())


def shares_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    place = a.untyped_storage().data_ptr()  # 0 of tensors without memory
    return place != 0 and place == b.untyped_storage().data_ptr()


def to_shapes(value: _SomeTensors) -> _SomeTensors:
    """Tensors of the same shapes and types that hold no numbers."""
    if isinstance(value, tuple):
        return tuple(map(to_shapes, value))
    return _make_shape(value.shape, value.dtype)


@lru_cache(512)
def _make_shape(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def is_traced(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor that depends on the model's input.

    Everything else is computed without gradients, so that only parameters, which are leaves, and
    what depends on the input can require them.
    """
    return isinstance(value, Tensor) and value.requires_grad and not value.is_leaf
