"""Matrix products and linear maps as operations, and the precision that they are computed in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from whence._util.torch_internals import convolution_backward
from whence._util.torch_products import can_multiply_quickly, multiply_quickly
from whence.errors import WhenceError
from whence.tracing.ops.base import Narrowed, Operation, Values

Precision = Literal["tf32", "bfloat16"]
HALF_TYPES = (torch.float16, torch.bfloat16)
"""Types of 16 bits, in which a sum of terms that nearly cancel is lost."""


class _ProductType(threading.local):
    """The type in which this thread computes products, if that is not the type of the factors."""

    dtype: torch.dtype | None = None


_product_type = _ProductType()


class _Tf32Switch:
    """Torch's own switch for TF32, which all threads share: the last user puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = ""

    @contextmanager
    def turn_on(self) -> Iterator[None]:
        """Let products of float32 be computed in TF32."""
        with self._lock:
            if self._users == 0:
                self._before = torch.get_float32_matmul_precision()
                torch.set_float32_matmul_precision("high")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    torch.set_float32_matmul_precision(self._before)


_tf32 = _Tf32Switch()


def check_precision(precision: Precision | None) -> None:
    """Refuse a precision that does not exist.

    Raises:
        WhenceError: There is none of that name.
    """
    if precision is not None and precision not in get_args(Precision):
        names = " or ".join(f"'{name}'" for name in get_args(Precision))
        raise WhenceError(
            f"precision is {names}, or None for that of the weights, not {precision!r}."
        )


@contextmanager
def use_precision(precision: Precision | None) -> Iterator[None]:
    """Compute matrix products in fewer bits; all else stays as it is."""
    if precision == "tf32":
        with _tf32.turn_on():
            yield
        return
    before, _product_type.dtype = _product_type.dtype, torch.bfloat16 if precision else None
    try:
        yield
    finally:
        _product_type.dtype = before


def is_reduced_precision() -> bool:
    """Whether products are computed in a type of fewer bits than their factors have."""
    return _product_type.dtype is not None


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of two factors, in the type that products are computed in."""
    dtype = _product_type.dtype
    return a @ b if dtype is None else (a.to(dtype) @ b.to(dtype)).to(a.dtype)


class Linear(Operation):
    """y = M(x, w) + bias, with M linear in x and in w, and w a constant.

    Attributes:
        x: The input.
        weight: The weight, w.
        bias: The bias, or None.
    """

    kind = "linear"
    activations = ("x", "output")
    constants = ("weight", "bias")
    read_by_gradient: tuple[str, ...] | None = ()
    x: Tensor

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, name: str = "", where: str = ""
    ) -> None:
        super().__init__(name, where)
        self.weight = weight
        self.bias = bias

    def map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """M(x, w) + bias."""
        if not is_reduced_precision():
            if can_multiply_quickly(x, weight, bias):
                return multiply_quickly(x, weight, bias)
            return F.linear(x, weight, bias)
        product = matmul(x, weight.mT)
        return product if bias is None else product.add_(bias)

    def add_map(self, total: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Add M(x, w) to a total, in place."""
        is_plain = self._maps_plainly() and total.is_contiguous()
        if not is_plain or can_multiply_quickly(x, weight):
            return total.add_(self.map(x, weight))
        rows = total.view(-1, total.shape[-1])  # the product itself adds, without another pass
        rows.addmm_(x.reshape(-1, x.shape[-1]), weight.mT)
        return total

    def adjoint(self, s: Tensor, weight: Tensor) -> Tensor:
        """The transpose of M(., w), applied to s."""
        if s.is_cpu and not is_reduced_precision() and can_multiply_quickly(s, weight.mT):
            return multiply_quickly(s, weight.mT)
        return matmul(s, weight)

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        self.x = x.detach()
        # The model's own call, so that logits are the model's to the last bit.
        compute = F.linear if self._maps_plainly() else self.map
        self.output = compute(x, self.weight, self.bias)
        return self.output

    def _maps_plainly(self) -> bool:
        """Whether M is torch's linear map, in the type of its factors."""
        return type(self).map is Linear.map and not is_reduced_precision()

    @override
    def gradient(self, output: Tensor) -> Values:
        return (self.adjoint(output, self.weight),)

    @property
    @override
    def supports_classes(self) -> bool:
        return self._maps_rows

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        if dim == -1 or not self._maps_rows:
            return None
        return self._narrow(("x", "output"), dim, start, length), (self.x.shape,)

    @property
    def _maps_rows(self) -> bool:
        """Whether a row of the output is made of the same row of the input."""
        return True


class Convolution(Linear):
    """A convolution in any number of dimensions, or the transpose of one."""

    read_by_gradient = None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        transposed: bool = False,
        output_padding: list[int] | None = None,
    ) -> None:
        super().__init__(weight, bias)
        added = [0] * len(stride) if output_padding is None else output_padding
        self.settings = (stride, padding, dilation, transposed, added, groups)

    @property
    def is_transposed(self) -> bool:
        """Whether it is the transpose of a convolution, which makes images larger."""
        return self.settings[3]

    @override
    def map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.convolution(x, weight, bias, *self.settings)

    @override
    def adjoint(self, s: Tensor, weight: Tensor) -> Tensor:
        return convolution_backward(s, self.x, weight, self.settings)

    @property
    @override
    def _maps_rows(self) -> bool:
        return False


class ConstantMatMul(Linear):
    """A matrix product of which one factor, of any shape, does not depend on the input."""

    def __init__(self, weight: Tensor, weight_first: bool) -> None:
        super().__init__(weight)
        self.weight_first = weight_first

    @override
    def map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product = matmul(weight, x) if self.weight_first else matmul(x, weight)
        return product if bias is None else product + bias

    @override
    def adjoint(self, s: Tensor, weight: Tensor) -> Tensor:
        product = matmul(weight.mT, s) if self.weight_first else matmul(s, weight.mT)
        return self.sum_to_shape(product, self.x.shape)

    @property
    @override
    def _maps_rows(self) -> bool:
        return not self.weight_first and self.weight.dim() == 2


class GroupedLinear(Linear):
    """A linear map of rows that come in groups, each with a weight of its own: those of experts.

    The weight is (groups, inputs, outputs).

    Args:
        multiply: Multiplies rows with the weights of their groups, in one product.
        weight: The weights.
    """

    supports_classes = True

    def __init__(self, multiply: Callable[[Tensor, Tensor], Tensor], weight: Tensor) -> None:
        super().__init__(weight)
        self._multiply = multiply

    @override
    def map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        dtype = x.dtype if _product_type.dtype is None else _product_type.dtype
        product = self._multiply(x.to(dtype), weight.to(dtype)).to(x.dtype)
        return product if bias is None else product + bias

    @override
    def adjoint(self, s: Tensor, weight: Tensor) -> Tensor:
        if s.dim() > self.output.dim():
            return torch.stack([self.map(one, weight.mT) for one in s])
        return self.map(s.contiguous(), weight.mT)

    @property
    @override
    def _maps_rows(self) -> bool:
        return False


class MatMul(Operation):
    """C = A B, both factors depending on the input."""

    kind = "matmul"
    activations = ("a", "b", "output")
    a: Tensor
    b: Tensor
    a_is_attention_map = False  # which is the output of a softmax, so that it is nowhere negative

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        self.a, self.b = make_contiguous(a.detach()), make_contiguous(b.detach())
        self.output = matmul(self.a, self.b)
        return self.output

    def keep(self, a: Tensor, b: Tensor, output: Tensor) -> None:
        """Keep factors and a product that are known already."""
        self.a, self.b, self.output = make_contiguous(a), make_contiguous(b), output

    def adjoints(self, s: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """S B^T and A^T S, in the shapes of A and B; None where that is not wanted."""
        if s.dim() > max(a.dim(), b.dim()):
            # The rows of all classes below each other, and the columns beside each other, make one
            # product of several.
            below, beside = s.movedim(0, -3), s.movedim(0, -2)
            to_a = to_b = None
            if self.is_wanted(0):
                to_a = matmul(below.flatten(-3, -2), b.mT).view(*below.shape[:-1], -1)
                to_a = to_a.movedim(-3, 0)
            if self.is_wanted(1):
                to_b = matmul(a.mT, beside.flatten(-2))
                to_b = to_b.view(*to_b.shape[:-1], *beside.shape[-2:]).movedim(-2, 0)
            return to_a, to_b
        s = s.contiguous()  # or it would be copied for each product
        to_a = matmul(s, b.mT) if self.is_wanted(0) else None
        to_b = self._adjoint_of_b(s, a, b) if self.is_wanted(1) else None
        if a.shape[:-2] != b.shape[:-2]:
            to_a = None if to_a is None else to_a.sum_to_size(a.shape)
            to_b = None if to_b is None else to_b.sum_to_size(b.shape)
        return to_a, to_b

    @staticmethod
    def _adjoint_of_b(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """A^T S, laid out in memory as B is: keys come transposed, and go on as they were."""
        is_transposed = b.stride(-2) == 1 and b.stride(-1) != 1
        return matmul(s.mT, a).mT if is_transposed else matmul(a.mT, s)

    @property
    @override
    def supports_classes(self) -> bool:
        return self.a.shape[:-2] == self.b.shape[:-2]

    @override
    def gradient(self, output: Tensor) -> Values:
        return self.adjoints(output, self.a, self.b)

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        if dim != -2:
            return None
        return self._narrow(("a", "output"), dim, start, length), (self.a.shape, None)


def make_contiguous(factor: Tensor) -> Tensor:
    """A factor that products need not copy again: heads mostly come as a transposed view.

    Rows that lie side by side, as those of transposed keys do, stay so.
    """
    if factor.is_contiguous() or factor.mT.is_contiguous():
        return factor
    return factor.mT.contiguous().mT if factor.stride(-2) == 1 else factor.contiguous()
