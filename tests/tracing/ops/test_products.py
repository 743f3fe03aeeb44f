"""Matrix products and linear maps against torch, and the precision they are computed in."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F

from tests.tracing.ops.helpers import check_gradients, double
from tests.zoo import CASES, build_model
from whence import Explainer, methods
from whence.errors import WhenceError
from whence.tracing.ops.products import (
    ConstantMatMul,
    Convolution,
    GroupedLinear,
    Linear,
    MatMul,
    is_reduced_precision,
    matmul,
    use_precision,
)

WEIGHT, BIAS = double(4, 5), double(4)
KERNEL = double(4, 3, 2, 2)
CONVOLUTION = {"stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
SQUARES = double(3, 4, 4)


def multiply_groups(rows, weights):
    """Two rows times the first weight, none times the second, and four times the third."""
    return torch.cat([rows[:2] @ weights[0], rows[2:] @ weights[2]])


OPERATIONS = {
    "linear": (
        lambda: Linear(WEIGHT, BIAS),
        lambda x: F.linear(x, WEIGHT, BIAS),
        [(2, 3, 5)],
    ),
    "convolution": (
        lambda: Convolution(KERNEL, BIAS, **CONVOLUTION),
        lambda x: F.conv2d(x, KERNEL, BIAS, **CONVOLUTION),
        [(2, 3, 6, 6)],
    ),
    "constant on the right": (
        lambda: ConstantMatMul(WEIGHT.mT, weight_first=False),
        lambda x: x @ WEIGHT.mT,
        [(2, 3, 5)],
    ),
    "constant on the left": (
        lambda: ConstantMatMul(SQUARES, weight_first=True),
        lambda x: SQUARES @ x,
        [(2, 1, 4, 5)],
    ),
    "groups of rows": (
        lambda: GroupedLinear(multiply_groups, SQUARES),
        lambda x: multiply_groups(x, SQUARES),
        [(6, 4)],
    ),
    "matmul": (MatMul, torch.matmul, [(2, 3, 4), (2, 4, 5)]),
    "matmul with broadcasting": (MatMul, torch.matmul, [(2, 3, 4, 5), (2, 1, 5, 6)]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_autograds(name):
    make, function, shapes = OPERATIONS[name]
    check_gradients(make(), function, *shapes)


def test_groups_of_rows_take_classes_at_once():
    operation, classes = GroupedLinear(multiply_groups, SQUARES), double(2, 6, 4)
    operation.forward(double(6, 4))
    (found,) = operation.gradient(classes)
    assert torch.equal(found, torch.stack([operation.gradient(one)[0] for one in classes]))


def test_inputs_that_are_not_wanted_are_left_out():
    product = MatMul()
    product.forward(double(2, 3, 4), double(2, 4, 5))
    for wanted in ((True, False), (False, True)):
        product.wanted = wanted
        found = product.gradient(double(2, 3, 5))
        assert tuple(value is not None for value in found) == wanted


# Quick products ----------------------------------------------------------------------------------


def test_only_outputs_are_computed_as_the_model_does(quick_products):
    weight, bias, x, s = WEIGHT.float(), BIAS.float(), double(2, 7, 5).float(), double(2, 7, 4)
    linear = Linear(weight, bias)
    with torch.profiler.profile() as profile:
        found = linear.forward(x)
    assert torch.equal(found, F.linear(x, weight, bias))
    assert not any("mkldnn" in one.key for one in profile.key_averages())
    with torch.profiler.profile() as profile:
        total = linear.add_map(linear.map(x, weight, bias), x, weight)
        (gradient,) = linear.gradient(s.float())
    counts = {one.key: one.count for one in profile.key_averages()}
    assert counts["mkldnn::_linear_pointwise"] == 3
    torch.testing.assert_close(total, 2 * F.linear(x, weight) + bias)
    torch.testing.assert_close(gradient, s.float() @ weight)


def test_a_reduced_precision_is_kept(quick_products):
    weight, x = WEIGHT.float(), double(7, 5).float()
    with use_precision("bfloat16"):
        found = Linear(weight).map(x, weight)
    assert torch.equal(found, (x.bfloat16() @ weight.mT.bfloat16()).float())


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "attnlrp", "lrp", "occlusion"])
@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "Bert-sdpa", "hand-written"])
def test_explanations_differ_by_rounding(request, name, method, compile):
    case = CASES[name]
    model, inputs = build_model(case), case.inputs()
    expected = Explainer(model).explain(inputs, method=method, classes=[0, 1])
    request.getfixturevalue("quick_products")
    explainer = Explainer(model, compile=compile)
    with torch.profiler.profile() as profile:
        for _ in range(2):
            found = explainer.explain(inputs, method=method, classes=[0, 1])
            distance = (found.scores - expected.scores).abs().amax()
            assert distance < 2e-5 * expected.scores.abs().amax()
            assert torch.equal(found.logits, expected.logits)
    assert any(one.key == "mkldnn::_linear_pointwise" for one in profile.key_averages())


# Precision ---------------------------------------------------------------------------------------


def test_products_are_rounded_and_nothing_else_is():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with use_precision("bfloat16"):
        assert is_reduced_precision()
        found = matmul(a, b)
    assert not is_reduced_precision()
    assert found.dtype == torch.float32
    assert torch.equal(found, (a.bfloat16() @ b.bfloat16()).float())
    assert torch.equal(matmul(a, b), a @ b)


def test_the_switch_for_tf32_is_put_back_by_the_last():
    before = torch.get_float32_matmul_precision()
    inside = []

    def work(_):
        with use_precision("tf32"):
            inside.append(torch.get_float32_matmul_precision())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(200)))
    assert set(inside) == {"high"}
    assert torch.get_float32_matmul_precision() == before


def test_precision_is_put_back_after_an_error():
    before = torch.get_float32_matmul_precision()
    for precision in ("tf32", "bfloat16"):
        with pytest.raises(ZeroDivisionError), use_precision(precision):
            1 / 0  # noqa: B018
    assert not is_reduced_precision()
    assert torch.get_float32_matmul_precision() == before


def test_another_precision_is_refused():
    with pytest.raises(WhenceError, match="precision is 'tf32' or 'bfloat16', or None"):
        Explainer(build_model(CASES["Bert-sdpa"]), precision="int8")


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout", "attnlrp", "lrp"])
@pytest.mark.parametrize(
    "name", ["ViTForImageClassification-sdpa", "Bert-sdpa", "timm-vit-unfused"]
)
def test_scores_in_bfloat16_are_close(name, method):
    case = CASES[name]
    model, inputs = build_model(case), case.inputs()
    exact = Explainer(model).explain(inputs, method=method, target=1)
    coarse = Explainer(model, precision="bfloat16").explain(inputs, method=method, target=1)
    assert coarse.scores.dtype == exact.scores.dtype
    assert 0 < (coarse.scores - exact.scores).norm() < 0.1 * exact.scores.norm()
    assert methods.get(method)().propagates or not torch.equal(coarse.logits, exact.logits)


@pytest.mark.parametrize("swapped", [False, True])
def test_gradients_of_a_factor_lie_in_memory_as_the_factor_does(swapped):
    queries, keys = double(2, 7, 3, 5).transpose(1, 2), double(2, 7, 3, 5).transpose(1, 2)
    product = MatMul()
    factors = (queries.mT, keys) if swapped else (queries, keys.mT)
    output = product.forward(*factors)
    to_a, to_b = product.gradient(torch.ones_like(output))
    torch.testing.assert_close(to_a, torch.ones_like(output) @ product.b.mT)
    torch.testing.assert_close(to_b, product.a.mT @ torch.ones_like(output))
    assert to_b.stride() == product.b.stride()
    assert product.b.mT.is_contiguous() is not swapped
