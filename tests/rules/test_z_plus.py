"""The rule of positive products, against its definition by loops and Jacobians."""

import itertools

import pytest
import torch
from torch import Tensor

from tests.rules.helpers import RELEVANCE_SETS, divide_guarded, propagate
from tests.tracing.helpers import predicted_classes, read_maps, record_case
from tests.tracing.ops.helpers import double
from whence import rules
from whence.tracing.ops.guard import Guard
from whence.tracing.ops.products import ConstantMatMul, Convolution, Linear, use_precision


def share_positive_products(
    x: Tensor, jacobian: Tensor, relevance: Tensor, rule_set: str = "stable"
) -> Tensor:
    """R_j = sum_i [x_j w_ji]+ / sum_j' [x_j' w_j'i]+ R_i, by loops over one sample."""
    result = torch.zeros_like(x)
    offset = 1e-20 if rule_set == "stable" else 1e-9
    for i in range(len(relevance)):
        products = [max(float(x[j] * jacobian[i, j]), 0.0) for j in range(len(x))]
        total = sum(products)
        for j, product in enumerate(products):
            result[j] += divide_guarded(product, total, offset) * relevance[i]
    return result


@pytest.mark.parametrize("rule_set", RELEVANCE_SETS)
@pytest.mark.parametrize("bias", [True, False])
def test_linear(rule_set, bias):
    x, weight = double(2, 3, 5), double(4, 5)
    operation = Linear(weight, double(4) if bias else None)
    relevance, (ours,) = propagate(rule_set, operation, x)
    for b, n in itertools.product(range(2), range(3)):
        slow = share_positive_products(x[b, n], weight, relevance[b, n], rule_set)
        assert torch.allclose(ours[b, n], slow, rtol=1e-7)


@pytest.mark.parametrize("rule_set", RELEVANCE_SETS)
def test_an_expert_that_no_token_is_sent_to(rule_set):
    _, (ours,) = propagate(rule_set, Linear(double(4, 5)), double(0, 5))
    assert ours.shape == (0, 5)


@pytest.mark.parametrize("rule_set", RELEVANCE_SETS)
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [([2, 2], [0, 0], [1, 1], 1), ([1, 1], [1, 1], [1, 1], 1), ([1, 2], [2, 0], [2, 1], 2)],
)
def test_convolution(rule_set, stride, padding, dilation, groups):
    x, weight = double(2, 4, 5, 6), double(6, 4 // groups, 2, 3)
    operation = Convolution(
        weight, double(6), stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    relevance, (ours,) = propagate(rule_set, operation, x)
    for b in range(2):
        jacobian = torch.autograd.functional.jacobian(
            lambda x: operation.map(x[None], weight).flatten(), x[b]
        ).flatten(1)
        slow = share_positive_products(x[b].flatten(), jacobian, relevance[b].flatten(), rule_set)
        assert torch.allclose(ours[b].flatten(), slow, rtol=1e-7)


@pytest.mark.parametrize("weight_first", [True, False])
def test_matmul_with_a_constant(weight_first):
    weight = double(3, 4, 4) if weight_first else double(4, 5)
    x = double(2, 3, 4, 4)
    relevance, (ours,) = propagate("stable", ConstantMatMul(weight, weight_first), x)
    for b in range(2):
        jacobian = torch.autograd.functional.jacobian(
            lambda x: (weight @ x if weight_first else x @ weight).flatten(), x[b]
        ).flatten(1)
        slow = share_positive_products(x[b].flatten(), jacobian, relevance[b].flatten())
        assert torch.allclose(ours[b].flatten(), slow, rtol=1e-7)


# The shortcut ------------------------------------------------------------------------------------


def nearly_cancelled() -> Linear:
    """In float32, a positive product beside one of the other sign, ten thousand times as large."""
    operation = Linear(torch.tensor([[-1.0, 1e-4]]))
    operation.forward(torch.tensor([[1.0, 1e-4]]))
    return operation


def test_a_neuron_with_hardly_a_positive_product_keeps_its_relevance():
    (relevance,) = rules.get("stable").propagate(nearly_cancelled(), torch.ones(1, 1))
    assert torch.allclose(relevance, torch.tensor([[0.0, 1.0]]))


class DeferringGuard(Guard):
    """Takes shortcuts unseen, as on a GPU."""

    def shortcut_fails(self, failure):
        return self.defer_shortcut(failure)


def test_a_shortcut_that_is_taken_unseen_is_told_in_the_end():
    operation = nearly_cancelled()
    operation.guard = DeferringGuard()
    rules.get("stable").propagate(operation, torch.ones(1, 1))
    assert bool(operation.guard.any_failure())
    operation.guard = DeferringGuard(exact=True)
    (relevance,) = rules.get("stable").propagate(operation, torch.ones(1, 1))
    assert torch.allclose(relevance, torch.tensor([[0.0, 1.0]]))
    assert operation.guard.any_failure() is None


def test_there_is_no_shortcut_in_reduced_precision():
    operation = nearly_cancelled()
    operation.guard = DeferringGuard()
    with use_precision("bfloat16"):
        rules.get("stable").propagate(operation, torch.ones(1, 1))
    assert operation.guard.any_failure() is None


def test_readings_without_shortcuts_are_the_same():
    trace = record_case("timm-vit-fused")
    classes, stable = predicted_classes(trace), rules.get("stable")
    quick = read_maps(trace, classes, stable)
    trace.guard.exact = True
    for a, b in zip(quick, read_maps(trace, classes, stable), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-15)
