"""Operations against autograd."""

from collections.abc import Callable

import torch
from torch import Tensor

from whence.tracing.ops.base import Operation


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def check_gradients(
    operation: Operation, function: Callable[..., Tensor], *shapes: tuple[int, ...]
) -> None:
    """Compare output and gradients, also of several classes, with those of a torch function."""
    inputs = [double(*shape).requires_grad_() for shape in shapes]
    output = operation.forward(*(x.detach() for x in inputs))
    expected = function(*inputs)
    assert torch.allclose(output, expected)
    seed = torch.randn_like(output)
    gradients = torch.autograd.grad(expected, inputs, seed)
    for found, wanted in zip(operation.gradient(seed), gradients, strict=True):
        assert torch.allclose(found, wanted)
    if operation.supports_classes:
        seeds = torch.stack([seed, -2 * seed])
        for found, wanted in zip(operation.gradient(seeds), gradients, strict=True):
            assert torch.allclose(found, torch.stack([wanted, -2 * wanted]))
