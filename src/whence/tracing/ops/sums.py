"""Sums: of two tensors that depend on the input, and of one and a constant; and of skips.

A skip connection and its branches are added up by one operation or several; `SkipAddition` is the
part that one of them has.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.tracing.ops.base import Narrowed, Operation, Values


class Add(Operation):
    """c = a + b, both terms depending on the input; `scale` multiplies b (-1 for a difference)."""

    kind = "add"
    supports_classes = True
    activations = ("a", "b")  # sums stay: the residual stream is one
    read_by_gradient = ()
    a: Tensor
    b: Tensor

    def __init__(self, scale: float = 1, name: str = "", where: str = "") -> None:
        super().__init__(name, where)
        self.scale = scale

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        self.shapes = a.shape, b.shape
        self.a = a.detach()
        self.b = b.detach() if self.scale == 1 else b.detach() * self.scale
        self.output = a + self.b
        return self.output

    def sum_to_shapes(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Undo broadcasting, by summing."""
        return self.sum_to_shape(a, self.shapes[0]), self.sum_to_shape(b, self.shapes[1])

    @override
    def gradient(self, output: Tensor) -> Values:
        return self.sum_to_shapes(output, output if self.scale == 1 else output * self.scale)

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        is_alone = self.skip is None or self.skip.is_alone
        if not (is_alone and self.a.shape == self.b.shape == self.output.shape):
            return None
        small = self._narrow(("a", "b", "output"), dim, start, length)
        small.shapes = small.a.shape, small.b.shape
        return small, self.shapes


class Shift(Operation):
    """y = x + c with a constant c: the position embeddings that are added to patches.

    Attributes:
        x: The input.
        constant: The constant, c.
    """

    kind = "shift"
    supports_classes = True
    activations = ("x", "output")
    constants = ("constant",)
    x: Tensor

    def __init__(self, constant: Tensor, name: str = "", where: str = "") -> None:
        super().__init__(name, where)
        self.constant = constant

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        self.x = inputs[0].detach()
        self.output = inputs[0] + self.constant
        return self.output

    @override
    def gradient(self, output: Tensor) -> Values:
        return (self.sum_to_shape(output, self.x.shape),)


@dataclass(eq=False)
class SkipSum:
    """What the operations share that add up one skip connection, z = z_1 + … + z_n.

    Attributes:
        count: How many terms there are, n.
        agree: For each term, where it does not have the opposite sign of the sum, once a backward
            pass has met the whole. Operations that make partial sums are passed later, when the
            whole may have been freed.
    """

    count: int
    agree: tuple[Tensor, ...] = ()


@dataclass(eq=False)
class SkipAddition:
    """The part of one operation in a sum of a skip connection and its branches.

    Attributes:
        summands: For each that the operation adds, the number of the term that it is, or is a part
            of; or the operation that made it, if it is a partial sum.
        is_last: Whether the operation completes the sum.
        shared: What it shares with the others.
        stack_dim: The dimension along which summands are stacked; None if they are two tensors.
    """

    summands: tuple[int | Operation, ...]
    is_last: bool
    shared: SkipSum
    stack_dim: int | None = None

    @property
    def is_alone(self) -> bool:
        """Whether one operation adds all terms."""
        return self.is_last and all(isinstance(one, int) for one in self.summands)
