"""Operations: gradients, broadcasting, rows, and the guard that looks at values."""

import pytest
import torch
from torch import Tensor

from tests.tracing.ops.helpers import check_gradients, double
from whence.tracing.ops.base import Operation, is_traced, shares_memory
from whence.tracing.ops.function import Function, is_norm
from whence.tracing.ops.guard import Guard
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


@pytest.mark.parametrize("dims", [1, 2])
def test_a_function_knows_how_many_dimensions_it_mixes(dims):
    """Rows of a softmax can be computed alone, but not columns."""
    softmax = Function("pass", lambda x: x.softmax(-1), mixed_dims=1)
    x = double(2, 5, 3) if dims == 1 else double(2, 4, 5, 3)
    softmax.forward(x)
    small, shapes = softmax.narrow_rows(-2, 1, 2)
    assert torch.equal(small.output, softmax.output[..., 1:3, :])
    assert shapes == (x.shape,)
    assert softmax.narrow_rows(-1, 0, 1) is None
    unknown = Function("pass", torch.tanh)
    unknown.forward(x)
    assert unknown.narrow_rows(-2, 1, 2) is None
    assert not unknown.supports_classes


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


@pytest.mark.parametrize(
    ("name", "norm"),
    [("layer_norm", True), ("LlamaRMSNorm", True), ("batch_norm", False), ("softmax", False)],
)
def test_norms_are_known_by_name(name, norm):
    assert is_norm(Function("pass", torch.tanh, name=name)) is norm


# The guard ---------------------------------------------------------------------------------------


def test_values_are_looked_at():
    guard = Guard()
    assert guard.sees_values
    assert not guard.exact
    assert guard.look_at(torch.tensor(5)) == 5
    assert guard.look_at(torch.tensor(True)) is True


def test_on_a_cpu_a_shortcut_is_decided_at_once():
    guard = Guard()
    assert guard.shortcut_fails(torch.tensor(True))
    assert not guard.shortcut_fails(torch.tensor(False))
    assert guard.any_failure() is None


def test_shortcuts_that_were_taken_unseen_are_told_once_in_the_end():
    guard = Guard()
    for failure in (False, True, False):
        assert not guard.defer_shortcut(torch.tensor(failure))
    assert bool(guard.any_failure())
    assert guard.any_failure() is None
    guard.defer_shortcut(torch.tensor(False))
    assert not bool(guard.any_failure())
