"""The rules of Chefer, Gur and Wolf against their definitions, written with loops."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.families.models import TEXT, build_transformers, make_ids
from tests.rules.helpers import divide_guarded, propagate
from tests.tracing.helpers import record_case
from tests.tracing.ops.helpers import double
from whence import Explainer, rules
from whence.tracing import record
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import Convolution, Linear, MatMul
from whence.tracing.ops.sums import Add, Shift

AUTHORS = ("reference", "paper")


def rescale(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """The authors' normalisation of two shares, of one sample."""
    sum_a, sum_b, total = float(a.sum()), float(b.sum()), float(relevance.sum())
    both = abs(sum_a) + abs(sum_b)
    return (
        a * divide_guarded(divide_guarded(abs(sum_a), both) * total, sum_a),
        b * divide_guarded(divide_guarded(abs(sum_b), both) * total, sum_b),
    )


@pytest.mark.parametrize("rule_set", AUTHORS)
def test_matmul(rule_set):
    a, b = double(2, 3, 4), double(2, 4, 5)
    relevance, (ours_a, ours_b) = propagate(rule_set, MatMul(), a, b)
    for n in range(2):
        slow_a, slow_b = torch.zeros_like(a[n]), torch.zeros_like(b[n])
        for i, k in itertools.product(range(3), range(5)):
            products = [float(a[n, i, j] * b[n, j, k]) for j in range(4)]
            for j, product in enumerate(products):
                share = divide_guarded(product, sum(products)) * relevance[n, i, k]
                slow_a[i, j] += share
                slow_b[j, k] += share
        if rule_set == "paper":
            slow_a, slow_b = rescale(slow_a, slow_b, relevance[n])
        else:
            slow_a, slow_b = slow_a / 2, slow_b / 2
        assert torch.allclose(ours_a[n], slow_a, rtol=1e-6)
        assert torch.allclose(ours_b[n], slow_b, rtol=1e-6)


@pytest.mark.parametrize("rule_set", AUTHORS)
@pytest.mark.parametrize("scale", [1, -1, 0.5])
def test_add(rule_set, scale):
    a, b = double(2, 3, 4), double(2, 3, 4)
    relevance, (ours_a, ours_b) = propagate(rule_set, Add(scale), a, b)
    for n in range(2):
        total = a[n] + scale * b[n]
        shares = [x * relevance[n] / (total + 1e-9) for x in (a[n], scale * b[n])]
        slow_a, slow_b = rescale(*shares, relevance[n])
        assert torch.allclose(ours_a[n], slow_a, rtol=1e-7)
        assert torch.allclose(ours_b[n], slow_b, rtol=1e-7)


@pytest.mark.parametrize("rule_set", AUTHORS)
def test_sums_and_means(rule_set):
    x = double(2, 3, 4)
    relevance, (ours,) = propagate(rule_set, Function("sum", lambda x: x.mean(1)), x)
    for b, d in itertools.product(range(2), range(4)):
        total = float(x[b, :, d].mean())
        for n in range(3):
            slow = divide_guarded(float(x[b, n, d]) / 3, total) * relevance[b, d]
            assert ours[b, n, d] == pytest.approx(float(slow), rel=1e-6)


@pytest.mark.parametrize("rule_set", [*AUTHORS, "authors_lrp"])
def test_products_are_matrix_products_of_one_by_one(rule_set):
    a, b = double(2, 3, 4), double(2, 3, 4)
    a[0, 0, 0] = 0
    product = Function("product", torch.mul)
    relevance, (ours_a, ours_b) = propagate(rule_set, product, a, b)
    for at in itertools.product(range(2), range(3), range(4)):
        c = float(a[at] * b[at])
        half = divide_guarded(float(relevance[at]), c) * c / 2
        assert ours_a[at].item() == ours_b[at].item() == pytest.approx(half, rel=1e-9)
    small = MatMul()
    small.batch = 2
    small.forward(a[..., None, None], b[..., None, None])
    # The paper's rescaling makes up for what the guard of the quotient loses.
    for ours, theirs in zip(
        (ours_a, ours_b),
        rules.get(rule_set).propagate(small, relevance[..., None, None]),
        strict=True,
    ):
        expected = theirs[..., 0, 0]
        if rule_set == "paper":
            expected = expected * (ours.sum((1, 2)) / expected.sum((1, 2)))[:, None, None]
        assert torch.allclose(ours, expected, rtol=1e-9)


@pytest.mark.parametrize("rule_set", AUTHORS)
def test_products_with_broadcasting_conserve(rule_set):
    a, b = double(2, 3, 4), double(2, 1, 4)
    relevance, (to_a, to_b) = propagate(rule_set, Function("product", torch.mul), a, b)
    assert to_b.shape == b.shape
    assert torch.allclose(to_b, to_a.sum(1, keepdim=True))
    assert float(to_a.sum() + to_b.sum()) == pytest.approx(float(relevance.sum()), rel=1e-5)


@pytest.mark.parametrize("rule_set", AUTHORS)
def test_quotients_are_norms(rule_set):
    a, b = double(2, 3, 4), double(2, 3, 1)
    relevance, (to_a, to_b) = propagate(rule_set, Function("quotient", torch.div), a, b)
    assert torch.equal(to_a, relevance)
    assert not to_b.any()


class GatedBlock(nn.Module):
    """An RMSNorm by hand and a SwiGLU, read at one token, without additions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up = (nn.Linear(6, 5, bias=False) for _ in range(2))
        self.down = nn.Linear(5, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.down(functional.silu(self.gate(x)) * self.up(x))[:, -1]


def share_positive(x: Tensor, weight: Tensor, relevance: Tensor) -> Tensor:
    """The rule for linear maps, neuron by neuron."""
    result = torch.zeros_like(x)
    for row, share in zip(weight, relevance, strict=True):
        products = (x * row).clamp(min=0)
        result += products / (products.sum() + 1e-9) * share
    return result


@pytest.mark.parametrize("rule_set", AUTHORS)
def test_relevance_passes_a_gated_block(rule_set):
    model, x = GatedBlock().double(), double(2, 4, 6)
    trace = record(model, (x,), {}, 0, needs_attention=False)
    classes = torch.ones(2, 1, dtype=torch.long)
    (ours,) = trace.read(classes, trace.leaves, rules.get(rule_set))
    for n in range(2):
        row = x[n, -1] / (x[n, -1].pow(2).mean() + 1e-6).sqrt()
        gate, up = model.gate.weight.detach(), model.up.weight.detach()
        product = functional.silu(gate @ row) * (up @ row)
        one_hot = torch.tensor([0.0, 1.0, 0.0]).double()
        half = share_positive(product, model.down.weight.detach(), one_hot) / 2
        expected = share_positive(row, gate, half) + share_positive(row, up, half)
        assert torch.allclose(ours[0, n, -1], expected, rtol=1e-5)
        assert float(expected.sum()) == pytest.approx(1, rel=1e-5)
        assert not ours[0, n, :-1].any()


@pytest.mark.parametrize("rule_set", rules.available())
def test_relevance_of_a_contrast_is_the_difference_of_two(rule_set):
    """Where it starts its sum is 0, which must not be what the rescaling of sums leaves of it."""
    trace = record_case("timm-vit-fused")
    one, other = torch.tensor([[0], [1]]), torch.tensor([[2], [0]])
    places = [trace.sites[0].weights, *trace.leaves]
    weights = trace.make_seeds(one) - 0.5 * trace.make_seeds(other)
    both = trace.read(torch.cat([weights, trace.make_seeds(one)]), places, rules.get(rule_set))
    alone = (trace.read(classes, places, rules.get(rule_set)) for classes in (one, other))
    for found, of_one, of_other in zip(both, *alone, strict=True):
        expected = torch.cat([of_one - 0.5 * of_other, of_one])
        assert expected.abs().max() > 0
        assert (found - expected).abs().max() < 1e-7 * expected.abs().max()


@pytest.mark.parametrize("rule_set", [*AUTHORS, "authors_lrp"])
@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Qwen3", "Phi3", "Mixtral", "GptOss"])
def test_language_models_with_gates_have_relevance(family, rule_set):
    sizes = {**TEXT, "head_dim": 8, "num_key_value_heads": 1, "pad_token_id": 0}
    if family in ("Mixtral", "GptOss"):
        sizes |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    model = build_transformers(f"{family}ForCausalLM", f"{family}Config", **sizes)
    ids = make_ids()
    explainer = Explainer(model, output=lambda returned: returned.logits[:, -1])
    both = explainer.explain({"input_ids": ids}, [3, 7], method="tiba", rules=rule_set)
    assert both.scores.isfinite().all()
    assert (both.scores[:, :-1] > 0).any()
    alone = explainer.explain({"input_ids": ids[1:]}, 7, method="tiba", rules=rule_set)
    assert torch.allclose(both.scores[1], alone.scores[0], rtol=1e-4, atol=1e-6)


def test_samples_of_a_batch_do_not_mix():
    a, b = double(3, 4, 5), double(3, 4, 5)
    relevance, (together, _) = propagate("reference", Add(), a, b)
    for i in range(3):
        operation = Add()
        operation.forward(a[i : i + 1], b[i : i + 1])
        alone, _ = rules.get("reference").propagate(operation, relevance[i : i + 1])
        assert torch.allclose(alone[0], together[i])


def test_a_tensor_that_is_read_twice_has_its_relevance_divided_and_multiplied():
    operation = Function("pass", torch.tanh, mixed_dims=0)
    operation.forward(torch.tensor([[0.0, 0.5]]))
    operation.reader_count = 2
    (ours,) = rules.get("reference").propagate(operation, torch.ones(1, 2))
    assert ours.tolist() == [[0.0, pytest.approx(1.0)]]
    (stable,) = rules.get("stable").propagate(operation, torch.ones(1, 2))
    assert stable.tolist() == [[1.0, 1.0]]


# Pixels and positions ----------------------------------------------------------------------------


def test_pixels_are_bounded():
    x, weight = double(2, 3, 4, 4), double(5, 3, 2, 2)
    options = {"stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    for rule_set in ("reference", "paper", "authors_lrp"):
        relevance, (ours,) = propagate(rule_set, Convolution(weight, double(5), **options), x)
        for b, row, column in itertools.product(range(2), range(2), range(2)):
            low, high = x[b].min(), x[b].max()
            patch = (b, slice(None), slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2))
            slow = torch.zeros_like(x[patch])
            for i in range(5):
                shares = x[patch] * weight[i] - low * weight[i].clamp(min=0)
                shares = shares - high * weight[i].clamp(max=0)
                slow += shares / (shares.sum() + 1e-9) * relevance[b, i, row, column]
            assert torch.allclose(ours[patch], slow, rtol=1e-7)


def test_positions_keep_their_share():
    x, constant = double(2, 4, 3), double(1, 4, 3)
    relevance, (ours,) = propagate("authors_lrp", Shift(constant), x)
    assert torch.allclose(ours, x * relevance / (x + constant + 1e-9), rtol=1e-9)
    relevance, (ours,) = propagate("reference", Shift(constant), x)
    for b in range(2):
        shares = [t * relevance[b] / (x[b] + constant[0] + 1e-9) for t in (x[b], constant[0])]
        sums = [float(share.sum()) for share in shares]
        total = abs(sums[0]) / (abs(sums[0]) + abs(sums[1])) * float(relevance[b].sum())
        assert torch.allclose(ours[b], shares[0] * total / sums[0], rtol=1e-6)


# The LRP that the authors compare with -----------------------------------------------------------


def test_products_of_each_sign_have_a_sum_of_their_own():
    x, weight = double(2, 5), double(4, 5)
    relevance, (ours,) = propagate("authors_lrp", Linear(weight, double(4)), x)
    for b in range(2):
        slow = torch.zeros(5, dtype=torch.float64)
        for sign, i in itertools.product((1, -1), range(4)):
            # Inputs of one sign meet weights of that sign.
            products = [
                float(x[b, j] * weight[i, j])
                if sign * x[b, j] > 0 and sign * weight[i, j] > 0
                else 0
                for j in range(5)
            ]
            for j, product in enumerate(products):
                slow[j] += divide_guarded(product, sum(products)) * relevance[b, i]
        assert torch.allclose(ours[b], slow, rtol=1e-7)


def test_an_addition_that_is_not_rescaled():
    a, b = double(2, 3), double(2, 3)
    relevance, (to_a, to_b) = propagate("authors_lrp", Add(), a, b)
    for at in itertools.product(range(2), range(3)):
        quotient = divide_guarded(float(relevance[at]), float(a[at] + b[at]))
        assert to_a[at].item() == pytest.approx(float(a[at]) * quotient, rel=1e-9)
        assert to_b[at].item() == pytest.approx(float(b[at]) * quotient, rel=1e-9)
