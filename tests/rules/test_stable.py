"""The rules ``stable`` against their definitions, and their conservation in whole models."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from tests.real import load_real_vit, read_photo
from tests.rules.helpers import divide_guarded, propagate
from tests.tracing.helpers import predicted_classes, read_maps, record_inputs
from tests.tracing.ops.helpers import double
from tests.zoo import CASES, build_model
from whence import rules
from whence.rules import RuleSet
from whence.tracing.ops.base import Operation
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import MatMul
from whence.tracing.ops.sums import Add, Shift


def test_matmul():
    a, b = double(2, 3, 4), double(2, 4, 5)
    relevance, (ours_a, ours_b) = propagate("stable", MatMul(), a, b)
    for n in range(2):
        slow_a, slow_b = torch.zeros_like(a[n]), torch.zeros_like(b[n])
        for i, k in itertools.product(range(3), range(5)):
            products = [abs(float(a[n, i, j] * b[n, j, k])) for j in range(4)]
            for j, product in enumerate(products):
                share = divide_guarded(product, sum(products)) * relevance[n, i, k] / 2
                slow_a[i, j] += share
                slow_b[j, k] += share
        assert torch.allclose(ours_a[n], slow_a, rtol=1e-6)
        assert torch.allclose(ours_b[n], slow_b, rtol=1e-6)


def test_a_map_is_taken_as_it_is():
    """A product of an attention map need not take the absolute value of what is not negative."""
    a, b = double(2, 3, 4).softmax(-1), double(2, 4, 5)
    torch.manual_seed(0)
    relevance, expected = propagate("stable", MatMul(), a, b)
    product = MatMul()
    product.a_is_attention_map = True
    product.forward(a, b)
    for ours, theirs in zip(
        rules.get("stable").propagate(product, relevance), expected, strict=True
    ):
        assert torch.equal(ours, theirs)


def test_matmul_with_broadcasting():
    a, b = double(2, 3, 4, 5), double(2, 1, 5, 6)
    relevance, (to_a, to_b) = propagate("stable", MatMul(), a, b)
    _, (wide_a, wide_b) = propagate("stable", MatMul(), a, b.expand(2, 3, 5, 6))
    assert to_b.shape == b.shape
    assert to_a.sum() + to_b.sum() == pytest.approx(float(relevance.sum()))
    assert (wide_a.shape, wide_b.shape) == (a.shape, (2, 3, 5, 6))


def test_stable_add():
    a, b = double(2, 3, 4), double(2, 3, 4)
    a[0, 0, 0] = b[0, 0, 0] = 0
    relevance, (to_a, to_b) = propagate("stable", Add(), a, b)
    share = a.abs() / (a.abs() + b.abs())
    share[0, 0, 0] = 0
    assert torch.allclose(to_a, share * relevance)
    assert torch.allclose(to_a + to_b, relevance)


def test_add_sums_back_what_was_broadcast():
    a, b = double(2, 3, 4), double(2, 1, 4)
    relevance, (to_a, to_b) = propagate("stable", Add(), a, b)
    assert to_b.shape == b.shape
    share = b.abs() / (a.abs() + b.abs())
    assert torch.allclose(to_b, (share * relevance).sum(1, keepdim=True))
    assert torch.allclose(to_a, (1 - share) * relevance)


def test_sums_and_means():
    x = double(2, 3, 4)
    relevance, (ours,) = propagate("stable", Function("sum", lambda x: x.mean(1)), x)
    for b, d in itertools.product(range(2), range(4)):
        total = float(x[b, :, d].abs().mean())
        for n in range(3):
            slow = divide_guarded(float(x[b, n, d].abs()) / 3, total) * relevance[b, d]
            assert ours[b, n, d] == pytest.approx(float(slow), rel=1e-6)


def test_quotients_pass_relevance_to_the_numerator():
    a, b = double(2, 3, 4), double(2, 3, 1)
    relevance, (to_a, to_b) = propagate("stable", Function("quotient", torch.div), a, b)
    assert torch.equal(to_a, relevance)
    assert torch.equal(to_b, torch.zeros_like(b))


def test_products_get_a_half_each():
    a, b = double(2, 3, 4), double(2, 1, 4)
    relevance, (to_a, to_b) = propagate("stable", Function("product", torch.mul), a, b)
    assert torch.equal(to_a, relevance / 2)
    assert torch.allclose(to_b, relevance.sum(1, keepdim=True) / 2)


def test_positions_let_relevance_pass():
    relevance, (ours,) = propagate("stable", Shift(double(1, 4, 3)), double(2, 4, 3))
    assert torch.equal(ours, relevance)


# Every operation of a whole model ----------------------------------------------------------------


def watch_conservation(errors: dict[str, list[float]]) -> RuleSet:
    """The stable rules, noting for each operation how much relevance it gained, lost or negated."""

    def watch(rule):
        def watched(operation: Operation, relevance: Tensor):
            result = rule(operation, relevance)
            shares = result if isinstance(result, tuple) else (result,)
            total = sum(share.double().sum() for share in shares)
            errors.setdefault(operation.name, []).append(
                float((total - relevance.double().sum()).abs() / relevance.double().abs().sum())
            )
            assert all((share >= 0).all() for share in shares), operation.name
            return result

        return watched

    stable = rules.get("stable")
    return RuleSet("watched", {kind: watch(rule) for kind, rule in stable.rules.items()})


def check_every_operation(model: nn.Module, pixels: Tensor) -> None:
    errors: dict[str, list[float]] = {}
    trace = record_inputs(model, pixels)
    read_maps(trace, predicted_classes(trace), watch_conservation(errors))
    assert {"linear", "matmul", "add", "softmax", "layer_norm"} <= set(errors)
    worst = {name: max(values) for name, values in errors.items()}
    assert max(worst.values()) < 1e-5, worst


def test_stable_conserves_in_every_operation():
    check_every_operation(build_model(CASES["timm-vit-fused"]), CASES["timm-vit-fused"].inputs())


def test_stable_conserves_in_every_operation_of_the_real_vit(data):
    check_every_operation(
        load_real_vit(data), read_photo(data, "ILSVRC2012_val_00000962.JPEG")[None].float()
    )
