"""Products of elements, against autograd."""

import pytest
import torch
from torch import Tensor

from whence.tracing.ops.function import Function
from whence.tracing.ops.scaling import Product, Scaling

TYPES = [torch.float64, torch.bfloat16]
FACTORS = {
    "number": 3,
    "scalar": torch.tensor(0.7, dtype=torch.float64),
    "vector": torch.linspace(-1, 2, 4),
    "rows": torch.linspace(-1, 2, 12).reshape(1, 3, 4),
    "wider": torch.linspace(1, 2, 60).reshape(5, 1, 3, 4),
}


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", FACTORS)
def test_scaling_is_that_of_autograd(name: str, dtype: torch.dtype, divides: bool) -> None:
    factor, x = FACTORS[name], draw(2, 3, 4, dtype=dtype)
    own = Scaling(factor, divides, None, "mul")
    usual = Function("pass", lambda x: x / factor if divides else x * factor)
    output = own.forward(x)
    torch.testing.assert_close(output, usual.forward(x), rtol=0, atol=0)
    torch.testing.assert_close(own.function(x), output, rtol=0, atol=0)
    gradient = draw(*output.shape).to(output.dtype)
    expected = usual.vjp(gradient)[0]
    torch.testing.assert_close(own.vjp(gradient)[0], expected)
    several = torch.stack([gradient, gradient * 2])
    torch.testing.assert_close(own.vjp(several)[0], torch.stack([expected, expected * 2]))


@pytest.mark.parametrize("name", ["number", "vector", "rows"])
@pytest.mark.parametrize("dim", [-1, -2, -3])
def test_scaling_of_some_rows(name: str, dim: int) -> None:
    own, x = Scaling(FACTORS[name], False, None, "mul"), draw(2, 3, 4)
    gradient = torch.zeros_like(own.forward(x))
    gradient.narrow(dim, 1, 1).fill_(1)
    small, shapes = own.narrow_rows(dim, 1, 1)
    found = small.vjp(gradient.narrow(dim, 1, 1))[0]
    torch.testing.assert_close(found, own.vjp(gradient)[0].narrow(dim, 1, 1))
    torch.testing.assert_close(small.function(small.inputs[0]), small.output)
    assert shapes == (x.shape,)


def test_a_factor_that_is_overwritten_is_copied() -> None:
    factor = torch.ones(4, dtype=torch.float64)
    own, x = Scaling(factor, False, None, "mul"), draw(2, 3, 4)
    gradient = torch.ones_like(own.forward(x))
    own.preserve(factor)
    own.preserve(x)
    factor.zero_()
    assert own.vjp(gradient)[0].eq(1).all()
    torch.testing.assert_close(own.function(own.inputs[0]), own.output)


@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1)), ((4,), (2, 1, 1))])
@pytest.mark.parametrize("dtype", TYPES)
def test_product_is_that_of_autograd(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype
) -> None:
    inputs = [draw(*shape, dtype=dtype) for shape in shapes]
    own, usual = Product("product", "mul", ""), Function("product", torch.mul)
    torch.testing.assert_close(own.forward(*inputs), usual.forward(*inputs), rtol=0, atol=0)
    gradient = draw(*own.output.shape, dtype=dtype)
    expected = usual.vjp(gradient)
    torch.testing.assert_close(own.vjp(gradient), expected)
    torch.testing.assert_close(own.gradient(gradient), expected)
    for found, one in zip(own.vjp(torch.stack([gradient] * 2)), expected, strict=True):
        torch.testing.assert_close(found, torch.stack([one] * 2))
    own.wanted = (True, False)
    assert own.gradient(gradient)[1] is None


def test_product_of_some_rows() -> None:
    own, inputs = Product("product", "mul", ""), (draw(2, 3, 4), draw(2, 3, 4) + 1)
    gradient = torch.zeros_like(own.forward(*inputs))
    gradient[:, 1] = 1
    small, _ = own.narrow_rows(-2, 1, 1)
    for found, whole in zip(small.vjp(gradient[:, 1:2]), own.vjp(gradient), strict=True):
        torch.testing.assert_close(found, whole[:, 1:2])
    own.forward(inputs[0], inputs[1][:, :1])
    assert own.narrow_rows(-2, 1, 1) is None
