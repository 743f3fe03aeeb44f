"""Operations: gradients, broadcasting, and what is kept."""

import pytest
import torch
from torch import Tensor

from tests.tracing.ops.helpers import check_gradients
from whence.tracing.ops.base import Operation, is_traced, shares_memory
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import ConstantMatMul, Linear, MatMul
from whence.tracing.ops.sums import Add, Shift

OPERATIONS = {
    "add": (Add, lambda a, b: a + b, [(2, 3, 4), (2, 3, 4)]),
    "difference": (lambda: Add(-1), lambda a, b: a - b, [(2, 3, 4), (2, 3, 4)]),
    "add with broadcasting": (Add, lambda a, b: a + b, [(2, 3, 4), (4,)]),
    "shift": (lambda: Shift(torch.ones(2, 3, 4)), lambda x: x + 1, [(2, 3, 4)]),
    "shift that broadcasts": (
        lambda: Shift(torch.ones(5, 3)),
        lambda x: x + torch.ones(5, 3),
        [(2, 1, 3)],
    ),
    "function": (lambda: Function("pass", torch.tanh, 0), torch.tanh, [(2, 3, 4)]),
    "function of two": (lambda: Function("product", torch.mul), torch.mul, [(2, 3), (2, 3)]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_autograds(name):
    make, function, shapes = OPERATIONS[name]
    check_gradients(make(), function, *shapes)


def test_a_released_operation_holds_no_tensors():
    operations: list[tuple[Operation, int]] = [
        (Add(), 2),
        (Linear(torch.eye(4), torch.ones(4)), 1),
        (ConstantMatMul(torch.eye(4), weight_first=False), 1),
        (MatMul(), 2),
        (Function("pass", torch.tanh), 1),
    ]
    for operation, count in operations:
        operation.forward(*[torch.randn(4, 4)] * count)
        operation.release()
        assert not any(isinstance(value, Tensor) for value in vars(operation).values())


def test_what_is_kept_survives_overwriting():
    for operation in (Add(), Function("pass", torch.tanh), Linear(torch.randn(4, 4))):
        inputs = [torch.randn(4, 4)] * (2 if isinstance(operation, Add) else 1)
        operation.forward(*inputs)
        seed = torch.randn(4, 4)
        expected = [value.clone() for value in operation.gradient(seed)]
        operation.preserve(inputs[0])
        inputs[0].zero_()
        for found, wanted in zip(operation.gradient(seed), expected, strict=True):
            assert torch.equal(found, wanted)
        assert not any(
            shares_memory(value, inputs[0])
            for value in vars(operation).values()
            if isinstance(value, Tensor)
        )


def test_only_what_depends_on_the_input_is_traced():
    leaf = torch.ones(2, requires_grad=True)
    assert is_traced(leaf * 2)
    assert not any(map(is_traced, (leaf, torch.ones(2), 1, None, [leaf * 2])))
