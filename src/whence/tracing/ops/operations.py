"""The operations that relevance rules know, and the autograd node that records one of them.

Autograd is the tape. Each operation of the forward pass becomes one `Recorded` node; going backward
through it asks the tape how it is being read: as a gradient, or as relevance under a set of rules.
So one forward pass serves any number of backward readings, and everything that merely moves numbers
about (reshape, slice, cat, ...) stays an ordinary autograd node, the same in either reading.

An operation keeps what its rules need: inputs, output, and the linear maps it is made of. It never
keeps a tensor that belongs to the graph, so no reference cycle holds memory back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.tracing.ops.products import are_coarse, matmul
from whence.tracing.tape import Tape


class Operation:
    """One operation of the forward pass, as rules see it.

    Attributes:
        kind: The name under which a rule set holds its rule.
        name: How the model spelled it, for messages.
        where: The module it was called in, for messages.
        tape: The tape it is recorded on.
        output: The output; not part of the graph.
        uses: How many recorded operations read the output.
        index: Its place among the operations of the forward pass.
        attends: Whether it is the softmax of an attention, or the product of its map with values.
        wanted: For each input, whether its reading is wanted; nothing said: all are.
    """

    kind = ""
    tape: Tape
    output: Tensor
    uses = 0
    index = 0
    attends = False
    wanted: tuple[bool, ...] = ()

    def __init__(self, name: str = "", where: str = "") -> None:
        self.name = name or type(self).__name__.lower()
        self.where = where

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute the output and keep what `gradient` and the rules need."""
        raise NotImplementedError

    def gradient(self, output: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs, given that of the output."""
        raise NotImplementedError

    @property
    def takes_classes(self) -> bool:
        """Whether readings may have classes as a dimension before their own.

        Where not, each class is read by itself.
        """
        return False

    def to_shape(self, reading: Tensor, shape: torch.Size) -> Tensor:
        """Undo broadcasting, by summing; classes before the dimensions of the output stay."""
        extra = reading.dim() - self.output.dim()
        if reading.shape[extra:] == shape:
            return reading
        ones = (1,) * (self.output.dim() - len(shape))
        classes = reading.shape[:extra]
        return reading.sum_to_size(*classes, *ones, *shape).reshape(*classes, *shape)

    def wants(self, number: int) -> bool:
        """Whether the reading of an input is wanted; a rule may give None for it if not."""
        return not self.wanted or self.wanted[number]

    def only_rows(
        self,
        dim: int,  # noqa: ARG002  for those that can
        start: int,  # noqa: ARG002
        length: int,  # noqa: ARG002
    ) -> tuple[Operation, tuple[torch.Size | None, ...]] | None:
        """The operation that makes some rows of the output alone, if there is one.

        Args:
            dim: Where rows are counted, from the end.
            start: The first of them.
            length: How many.

        Returns:
            The operation, and for each of its inputs the shape of the whole if it has only these
            rows of it, too, and None if it reads all of it.
        """
        return None

    def _narrowed(self, names: tuple[str, ...], dim: int, start: int, length: int) -> Self:
        small = copy.copy(self)
        for name in names:
            setattr(small, name, getattr(self, name).narrow(dim, start, length))
        return small

    def release(self) -> None:
        """Let go of all tensors, when nothing will be read backward."""
        for name in [name for name, value in vars(self).items() if _holds_tensors(value)]:
            delattr(self, name)

    def preserve(self, overwritten: Tensor) -> None:
        """Copy what is kept of a tensor's memory before the model overwrites it."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and _same_memory(value, overwritten):
                setattr(self, name, value.clone())


def _holds_tensors(value: object) -> bool:
    return isinstance(value, Tensor) or (
        isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value)
    )


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


class Recorded(torch.autograd.Function):
    """The autograd node of an operation."""

    @staticmethod
    def forward(ctx: Any, operation: Operation, *inputs: Tensor) -> Tensor:  # noqa: D102
        ctx.operation = operation
        # The same numbers in a tensor of its own: what an operation keeps must not become part of
        # the graph, and a view made in here could not be written to in place.
        return operation.forward(*inputs).data

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        operation: Operation = ctx.operation
        rules = operation.tape.rules
        if rules is None:
            return (None, *operation.gradient(outputs[0]))
        return (None, *rules.propagate(operation, outputs[0]))


class Linear(Operation):
    """y = M(x, w) + bias, with M linear in x and in w, and w a constant.

    Attributes:
        x: The input.
        weight: The weight, w.
        bias: The bias, or None.
    """

    kind = "linear"
    x: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None, **at: str) -> None:
        super().__init__(**at)
        self.weight = weight
        self.bias = bias

    def map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """M(x, w) + bias."""
        if not are_coarse():
            return F.linear(x, weight, bias)
        product = matmul(x, weight.mT)
        return product if bias is None else product.add_(bias)

    def adjoint(self, s: Tensor, weight: Tensor) -> Tensor:
        """The transpose of M(., w), applied to s."""
        return matmul(s, weight)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # noqa: D102
        self.x = x.detach()
        self.output = self.map(x, self.weight, self.bias)
        return self.output

    def gradient(self, output: Tensor) -> tuple[Tensor, ...]:  # noqa: D102
        return (self.adjoint(output, self.weight),)

    @property
    def takes_classes(self) -> bool:  # noqa: D102
        return self._by_row

    def only_rows(self, dim: int, start: int, length: int) -> Any:  # noqa: D102
        if dim == -1 or not self._by_row:
            return None
        return self._narrowed(("x", "output"), dim, start, length), (self.x.shape,)

    @property
    def _by_row(self) -> bool:
        """Whether a row of the output is made of the same row of the input."""
        return True


class Convolution(Linear):
    """A convolution in any number of dimensions."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...], **at: str
    ) -> None:
        super().__init__(weight, bias, **at)
        stride, padding, dilation, groups = settings
        self.settings = (stride, padding, dilation, False, [0] * len(stride), groups)

    def map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: D102
        return torch.convolution(x, weight, bias, *self.settings)

    def adjoint(self, s: Tensor, weight: Tensor) -> Tensor:  # noqa: D102
        backward = torch.ops.aten.convolution_backward
        only_x = (True, False, False)
        adjoint: Tensor = backward(s, self.x, weight, None, *self.settings, only_x)[0]
        return adjoint

    @property
    def _by_row(self) -> bool:
        return False


class ConstantMatMul(Linear):
    """A matrix product of which one factor, of any shape, does not depend on the input."""

    def __init__(self, weight: Tensor, weight_first: bool, **at: str) -> None:
        super().__init__(weight, None, **at)
        self.weight_first = weight_first

    def map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: D102
        product = matmul(weight, x) if self.weight_first else matmul(x, weight)
        return product if bias is None else product + bias

    def adjoint(self, s: Tensor, weight: Tensor) -> Tensor:  # noqa: D102
        product = matmul(weight.mT, s) if self.weight_first else matmul(s, weight.mT)
        return self.to_shape(product, self.x.shape)

    @property
    def _by_row(self) -> bool:
        return not self.weight_first and self.weight.dim() == 2


class MatMul(Operation):
    """C = A B, both factors depending on the input."""

    kind = "matmul"
    a: Tensor
    b: Tensor
    a_is_map = False  # as it came out of a softmax, so that it is nowhere negative

    def forward(self, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]  # noqa: D102
        self.a, self.b = _packed(a.detach()), _packed(b.detach())
        self.output = matmul(self.a, self.b)
        return self.output

    def adjoints(self, s: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """S B^T and A^T S, in the shapes of A and B; None where that is not wanted."""
        if s.dim() > self.output.dim():
            # The rows of all classes below each other, and the columns beside each other, make one
            # product of several.
            below, beside = s.movedim(0, -3), s.movedim(0, -2)
            to_a = to_b = None
            if self.wants(0):
                to_a = matmul(below.flatten(-3, -2), b.mT).view(*below.shape[:-1], -1)
                to_a = to_a.movedim(-3, 0)
            if self.wants(1):
                to_b = matmul(a.mT, beside.flatten(-2))
                to_b = to_b.view(*to_b.shape[:-1], *beside.shape[-2:]).movedim(-2, 0)
            return to_a, to_b
        s = s.contiguous()  # or it would be copied for each product
        return (
            matmul(s, b.mT).sum_to_size(a.shape) if self.wants(0) else None,
            matmul(a.mT, s).sum_to_size(b.shape) if self.wants(1) else None,
        )

    @property
    def takes_classes(self) -> bool:  # noqa: D102
        return self.a.shape[:-2] == self.b.shape[:-2]

    def gradient(self, output: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        return self.adjoints(output, self.a, self.b)

    def only_rows(self, dim: int, start: int, length: int) -> Any:  # noqa: D102
        if dim != -2:
            return None
        return self._narrowed(("a", "output"), dim, start, length), (self.a.shape, None)


def _packed(factor: Tensor) -> Tensor:
    """A factor that products need not copy again: heads mostly come as a transposed view."""
    return factor if factor.is_contiguous() or factor.mT.is_contiguous() else factor.contiguous()


class Add(Operation):
    """c = a + b, both terms depending on the input; `scale` multiplies b (-1 for a difference)."""

    kind = "add"
    a: Tensor
    b: Tensor

    def __init__(self, scale: float = 1, **at: str) -> None:
        super().__init__(**at)
        self.scale = scale

    def forward(self, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]  # noqa: D102
        self.shapes = a.shape, b.shape
        self.a = a.detach()
        self.b = b.detach() if self.scale == 1 else b.detach() * self.scale
        self.output = a + self.b
        return self.output

    @property
    def takes_classes(self) -> bool:  # noqa: D102
        return True

    def to_shapes(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Undo broadcasting, by summing."""
        return self.to_shape(a, self.shapes[0]), self.to_shape(b, self.shapes[1])

    def gradient(self, output: Tensor) -> tuple[Tensor, ...]:  # noqa: D102
        return self.to_shapes(output, output if self.scale == 1 else output * self.scale)

    def only_rows(self, dim: int, start: int, length: int) -> Any:  # noqa: D102
        if not self.a.shape == self.b.shape == self.output.shape:
            return None
        small = self._narrowed(("a", "b", "output"), dim, start, length)
        small.shapes = small.a.shape, small.b.shape
        return small, self.shapes


class Shift(Operation):
    """y = x + c with a constant c: the positions that are added to patches.

    Attributes:
        x: The input.
        constant: The constant, c.
    """

    kind = "shift"
    x: Tensor

    def __init__(self, constant: Tensor, **at: str) -> None:
        super().__init__(**at)
        self.constant = constant

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # noqa: D102
        self.x = x.detach()
        self.output = x + self.constant
        return self.output

    @property
    def takes_classes(self) -> bool:  # noqa: D102
        return True

    def gradient(self, output: Tensor) -> tuple[Tensor, ...]:  # noqa: D102
        return (self.to_shape(output, self.x.shape),)


class Function(Operation):
    """Any function of one or more tensors, taken as a whole.

    It keeps a little graph of its own, so that gradients, and the products with Jacobians that a
    rule may want, come from autograd.

    Attributes:
        inputs: The inputs that depend on the model's input.
        mixes: How many of the last dimensions it mixes: 0 for a function of single numbers, 1 for
            a norm of rows; None if that is not known.
    """

    inputs: tuple[Tensor, ...]

    def __init__(
        self,
        kind: str,
        function: Callable[..., Tensor],
        mixes: int | None = None,
        **at: str,
    ) -> None:
        super().__init__(**at)
        self.kind = kind
        self.function = function
        self.mixes = mixes

    def forward(self, *inputs: Tensor) -> Tensor:  # noqa: D102
        with torch.enable_grad():
            self.inputs = tuple(x.detach().requires_grad_() for x in inputs)
            self._end = self.function(*self.inputs)
        self.output = self._end.detach()
        return self.output

    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        """The product of a cotangent of the output with the Jacobian of each input."""
        if cotangent.dim() > self.output.dim():
            # As many samples as there are classes and samples.
            x = self.inputs[0].detach().expand_as(cotangent).flatten(0, 1)
            repeated = copy.copy(self)
            repeated.forward(x)
            return tuple(g.view_as(cotangent) for g in repeated.vjp(cotangent.flatten(0, 1)))
        return torch.autograd.grad(
            self._end, self.inputs, cotangent, retain_graph=True, materialize_grads=True
        )

    def gradient(self, output: Tensor) -> tuple[Tensor, ...]:  # noqa: D102
        return self.vjp(output)

    def only_rows(self, dim: int, start: int, length: int) -> Any:  # noqa: D102
        if not self._by_row or -dim <= (self.mixes or 0):
            return None
        x = self.inputs[0].detach()
        small = copy.copy(self)
        small.forward(x.narrow(dim, start, length))
        return small, (x.shape,)

    @property
    def takes_classes(self) -> bool:  # noqa: D102
        return self._by_row and (self.mixes or 0) < self.output.dim()

    @property
    def _by_row(self) -> bool:
        """Whether a row of the output is made of the same row of the input."""
        known = self.mixes is not None and len(self.inputs) == 1
        return known and self.inputs[0].shape == self.output.shape

    def preserve(self, overwritten: Tensor) -> None:  # noqa: D102
        if any(_same_memory(kept, overwritten) for kept in (*self.inputs, self.output)):
            self.forward(*(x.detach().clone() for x in self.inputs))
