"""Products of elements: of a tensor with a constant, and of two tensors.

They compute what `Function` does, but need no graph of autograd for it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from whence.tracing.ops.base import Narrowed, Values, shares_memory
from whence.tracing.ops.function import Function


class Scaling(Function):
    """y = x · c, or x / c, with a constant c.

    Args:
        factor: The constant, c.
        divides: Whether x is divided by it.
        mixed_dims: As for `Function`.
        name: The torch function that computed it.
    """

    supports_classes = True
    keeps_graph = False
    constants = ("_factor",)
    read_by_gradient = ()

    def __init__(
        self, factor: Tensor | float, divides: bool, mixed_dims: int | None, name: str
    ) -> None:
        called = torch.div if divides else torch.mul
        super().__init__("pass", partial(called, other=factor), mixed_dims, name)
        self._factor = factor
        self._divides = divides

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        x = inputs[0].detach()
        self.inputs = (x,)
        self.output = x / self._factor if self._divides else x * self._factor
        return self.output

    @override
    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        x = self.inputs[0]
        scaled = cotangent / self._factor if self._divides else cotangent * self._factor
        return (_fit(self, scaled, x),)

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        x, factor = self.inputs[0], self._factor
        if x.shape != self.output.shape:
            return None
        small = self._narrow(("output",), dim, start, length)
        small.inputs = (x.narrow(dim, start, length),)
        if isinstance(factor, Tensor) and factor.dim() >= -dim and factor.shape[dim] > 1:
            small._replace_factor(factor.narrow(dim, start, length))
        return small, (x.shape,)

    @override
    def preserve(self, overwritten: Tensor) -> None:
        factor = self._factor
        if isinstance(factor, Tensor) and shares_memory(factor, overwritten):
            self._replace_factor(factor.clone())
        super().preserve(overwritten)

    def _replace_factor(self, factor: Tensor) -> None:
        self._factor = factor
        self.function = partial(torch.div if self._divides else torch.mul, other=factor)


class Product(Function):
    """y = a · b, both factors depending on the input.

    Args:
        kind: ``"product"``; or ``"quotient"``, if b is one over something, or a gate.
        name: The torch function that computed it.
        where: The module it was called in, for messages.
    """

    supports_classes = True
    keeps_graph = False
    read_by_gradient = ("inputs",)

    def __init__(self, kind: str, name: str, where: str) -> None:
        super().__init__(kind, torch.mul, None, name, where)

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        a, b = self.inputs = inputs[0].detach(), inputs[1].detach()
        self.output = a * b
        return self.output

    @override
    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        a, b = self.inputs
        return _fit(self, cotangent * b, a), _fit(self, cotangent * a, b)

    @override
    def gradient(self, output: Tensor) -> Values:
        a, b = self.inputs
        to_a = _fit(self, output * b, a) if self.is_wanted(0) else None
        return to_a, _fit(self, output * a, b) if self.is_wanted(1) else None

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        a, b = self.inputs
        if not a.shape == b.shape == self.output.shape:
            return None
        small = self._narrow(("output",), dim, start, length)
        small.inputs = a.narrow(dim, start, length), b.narrow(dim, start, length)
        return small, (a.shape, b.shape)


def _fit(operation: Function, value: Tensor, like: Tensor) -> Tensor:
    """A value in the shape and the type of an input; classes before its dimensions stay."""
    value = operation.sum_to_shape(value, like.shape)
    return value if value.dtype == like.dtype else value.to(like.dtype)
