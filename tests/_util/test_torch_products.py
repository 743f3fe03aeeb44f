"""Products by oneDNN: what they are, when they are taken, and when torch's own call is."""

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from whence._util import torch_products
from whence._util.torch_products import (
    QUICK_PRODUCT,
    can_multiply_quickly,
    is_quicker_by_onednn,
    multiply_quickly,
    use_quick_products,
)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


FACTORS = {
    "rows": (draw(7, 12), draw(5, 12), draw(5)),
    "no bias": (draw(7, 12), draw(5, 12), None),
    "one row": (draw(1, 12), draw(5, 12), draw(5)),
    "batches of classes": (draw(2, 3, 7, 12), draw(5, 12), draw(5)),
    "a transposed weight": (draw(7, 12), draw(12, 5).mT, draw(5)),
    "a part of a weight": (draw(7, 12), draw(9, 30)[2:7, 4:16], draw(5)),
    "every second column": (draw(7, 24)[:, ::2], draw(5, 24)[:, 1::2], draw(5)),
    "heads that were moved": (draw(3, 7, 12).transpose(0, 1), draw(5, 12), draw(5)),
    "one weight for all columns": (draw(7, 12), draw(5, 1).expand(5, 12), draw(5)),
    "one row again and again": (draw(1, 12).expand(7, 12), draw(5, 12), draw(5)),
    "a part of a bias": (draw(7, 12), draw(5, 12), draw(15)[5:10]),
}


@pytest.mark.parametrize("name", FACTORS)
def test_products_are_right(quick_products, name):
    x, weight, bias = FACTORS[name]
    assert can_multiply_quickly(x, weight, bias)
    expected = x.double() @ weight.double().mT + (0 if bias is None else bias.double())
    for product in (multiply_quickly, QUICK_PRODUCT):
        found = product(x, weight, bias)
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


X, WEIGHT, BIAS = draw(7, 12), draw(5, 12), draw(5)
REFUSED = {
    "float64": (X.double(), WEIGHT.double(), BIAS.double()),
    "bfloat16": (X.bfloat16(), WEIGHT.bfloat16(), BIAS.bfloat16()),
    "types that differ": (X, WEIGHT.double(), BIAS),
    "a bias of another type": (X, WEIGHT, BIAS.double()),
    "a vector": (X[0], WEIGHT, BIAS),
    "a weight in batches": (draw(2, 7, 12), draw(2, 12, 5), None),
    "every second element of a bias": (X, WEIGHT, draw(10)[::2]),
    "the same bias everywhere": (X, WEIGHT, draw(1).expand(5)),
    "a bias for each row": (X, WEIGHT, draw(7, 5)),
    "one bias for all columns": (X, WEIGHT, draw(1)),
    "rows that are too short": (X[:, :11].contiguous(), WEIGHT, BIAS),
    "a weight that overlaps itself": (X, draw(30).as_strided((5, 12), (2, 1)), BIAS),
    "no rows": (X[:0], WEIGHT, BIAS),
    "no columns": (X[:, :0], WEIGHT[:, :0], BIAS),
    "a sparse weight": (X, WEIGHT.to_sparse(), None),
    "no values": (X.to("meta"), WEIGHT.to("meta"), None),
    "a weight without values": (X, WEIGHT.to("meta"), None),
    "an input with a graph": (X.clone().requires_grad_(), WEIGHT, BIAS),
    "a weight with a graph": (X, nn.Parameter(WEIGHT), BIAS),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_left_to_torch(quick_products, name):
    assert can_multiply_quickly(X, WEIGHT, BIAS)
    assert not can_multiply_quickly(*REFUSED[name])


def test_small_products_are_left_to_torch(quick_products, monkeypatch):
    monkeypatch.setattr(torch_products, "_FEW_PRODUCTS", 7 * 12 * 5)
    assert can_multiply_quickly(X, WEIGHT)
    assert not can_multiply_quickly(X[:6], WEIGHT)


def test_who_needs_no_gradient_need_not_detach(quick_products):
    with torch.no_grad():
        assert can_multiply_quickly(X.clone().requires_grad_(), nn.Parameter(WEIGHT), BIAS)


def test_settings_of_torch_are_heeded(quick_products):
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_multiply_quickly(X, WEIGHT)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not can_multiply_quickly(X, WEIGHT)
    assert can_multiply_quickly(X, WEIGHT)


def test_transforms_of_functions_are_left_to_torch(quick_products):
    asked = []

    def multiply(row: Tensor) -> Tensor:
        asked.append(can_multiply_quickly(row, WEIGHT))
        return F.linear(row, WEIGHT)

    torch.func.vmap(multiply)(draw(2, 7, 12))
    assert asked == [False]


def test_tangents_are_left_to_torch(quick_products):
    """The operator of oneDNN has no formula for them."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, draw(7, 12) + 1)
        assert not can_multiply_quickly(dual, WEIGHT, BIAS)
    asked = []

    def multiply(rows: Tensor) -> Tensor:
        asked.append(can_multiply_quickly(rows, WEIGHT))
        with use_quick_products("cpu"):
            return F.linear(rows, WEIGHT)

    _, found = torch.func.jvp(multiply, (X,), (X,))
    assert asked == [False]
    torch.testing.assert_close(found, F.linear(X, WEIGHT))
    assert can_multiply_quickly(X, WEIGHT, BIAS)


# On which processors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vendor", "capability", "has_mkl", "expected"),
    [
        ("AuthenticAMD", "AVX512", True, True),
        ("HygonGenuine", "AVX512", True, True),
        ("AuthenticAMD", "AVX2", True, False),
        ("AuthenticAMD", "AVX512", False, False),
        ("GenuineIntel", "AVX512", True, False),
        ("", "AVX512", True, False),
        ("CentaurHauls", "AVX512", True, False),
    ],
)
def test_it_is_quicker_where_mkl_leaves_registers_alone(
    monkeypatch, vendor, capability, has_mkl, expected
):
    monkeypatch.setattr(torch_products, "read_cpu_vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    assert is_quicker_by_onednn.__wrapped__() == expected


def test_nothing_is_quicker_without_onednn(monkeypatch):
    monkeypatch.setattr(torch_products, "read_cpu_vendor", lambda: "AuthenticAMD")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch_products, "_linear_pointwise", None)
    assert not is_quicker_by_onednn.__wrapped__()


# Models that run plainly -------------------------------------------------------------------------


def count_products(model: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, int]:
    """What a model gives, and how many products oneDNN computed for it."""
    with torch.profiler.profile() as profile:
        output = model(*inputs)
    counts = {one.key: one.count for one in profile.key_averages()}
    return output, counts.get("mkldnn::_linear_pointwise", 0)


def test_models_multiply_quickly_while_it_is_on(quick_products):
    model = nn.Sequential(nn.Linear(12, 9), nn.GELU(), nn.Linear(9, 4, bias=False))
    with torch.no_grad():
        expected, before = count_products(model, X)
        with use_quick_products("cpu"):
            found, inside = count_products(model, X)
        _, after = count_products(model, X)
    assert (before, inside, after) == (0, 2, 0)
    torch.testing.assert_close(found, expected)


def test_gradients_stay_torchs_own(quick_products):
    model = nn.Linear(12, 9)
    with use_quick_products("cpu"):
        output, count = count_products(model, X)
        output.sum().backward()
    assert count == 0
    torch.testing.assert_close(model.weight.grad, X.sum(0).expand(9, 12))


def test_calls_with_names_are_left_alone(quick_products):
    with use_quick_products("cpu"):
        found, count = count_products(lambda x: F.linear(x, WEIGHT, bias=BIAS), X)
    assert count == 0
    assert torch.equal(found, F.linear(X, WEIGHT, BIAS))


def test_what_torch_compiles_is_left_to_its_compiler(quick_products):
    model = nn.Sequential(nn.Linear(12, 9), nn.GELU(), nn.Linear(9, 4))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad(), use_quick_products("cpu"):
        found = compiled(X)
    with torch.no_grad():
        torch.testing.assert_close(found, model(X))


def test_no_mode_is_entered_where_it_helps_nothing(quick_products, monkeypatch):
    assert isinstance(use_quick_products("cuda:0"), contextlib.nullcontext)
    monkeypatch.setattr(torch_products, "is_quicker_by_onednn", lambda: False)
    by_cpu = use_quick_products(torch.device("cpu"))
    assert isinstance(by_cpu, contextlib.nullcontext)
