"""Each rule against a slow version of its definition, written with loops or Jacobians."""

import itertools
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from whence.tracing.ops.operations import (
    Add,
    ConstantMatMul,
    Convolution,
    Function,
    Linear,
    MatMul,
    Operation,
    Shift,
    Tape,
)

from tests.real import photo, real_vit
from tests.zoo import CASES, built
from whence import Explainer, NoRuleError, WhenceError, rules
from whence.rules import RuleSet
from whence.tracing import record

SETS = ("stable", "reference", "paper")
AUTHORS = ("reference", "paper")


def propagate(rule_set: str, operation: Operation, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Relevance of an operation's inputs for a random relevance of its output."""
    operation.tape = Tape()
    operation.tape.batch = len(inputs[0])
    output = operation.forward(*inputs)
    relevance = torch.rand_like(output)
    return relevance, list(rules.get(rule_set).propagate(operation, relevance))


def guarded(a: float, b: float, moved_by: float = 1e-9) -> float:
    """The authors' quotient; the stable rules move the denominator less."""
    return 0.0 if b == 0 else a / (b + moved_by)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def slow_positive_products(
    x: Tensor, jacobian: Tensor, relevance: Tensor, rule_set: str = "stable"
) -> Tensor:
    """R_j = sum_i [x_j w_ji]+ / sum_j' [x_j' w_j'i]+ R_i, by loops over one sample."""
    result = torch.zeros_like(x)
    moved_by = 1e-20 if rule_set == "stable" else 1e-9
    for i in range(len(relevance)):
        products = [max(float(x[j] * jacobian[i, j]), 0.0) for j in range(len(x))]
        total = sum(products)
        for j, product in enumerate(products):
            result[j] += guarded(product, total, moved_by) * relevance[i]
    return result


@pytest.mark.parametrize("rule_set", SETS)
@pytest.mark.parametrize("bias", [True, False])
def test_linear(rule_set, bias):
    x, weight = double(2, 3, 5), double(4, 5)
    operation = Linear(weight, double(4) if bias else None)
    relevance, (ours,) = propagate(rule_set, operation, x)
    for b, n in itertools.product(range(2), range(3)):
        slow = slow_positive_products(x[b, n], weight, relevance[b, n], rule_set)
        assert torch.allclose(ours[b, n], slow, rtol=1e-7)


def test_a_neuron_with_hardly_a_positive_product_keeps_its_relevance():
    """In float32, beside a product ten thousand times as large of the other sign."""
    operation = Linear(torch.tensor([[-1.0, 1e-4]]))
    operation.tape = Tape()
    operation.forward(torch.tensor([[1.0, 1e-4]]))
    (relevance,) = rules.get("stable").propagate(operation, torch.ones(1, 1))
    assert torch.allclose(relevance, torch.tensor([[0.0, 1.0]]))


@pytest.mark.parametrize("rule_set", SETS)
@pytest.mark.parametrize(
    "settings",
    [([2, 2], [0, 0], [1, 1], 1), ([1, 1], [1, 1], [1, 1], 1), ([1, 2], [2, 0], [2, 1], 2)],
)
def test_convolution(rule_set, settings):
    x, weight = double(2, 4, 5, 6), double(6, 4 // settings[3], 2, 3)
    operation = Convolution(weight, double(6), settings)
    relevance, (ours,) = propagate(rule_set, operation, x)
    for b in range(2):
        jacobian = torch.autograd.functional.jacobian(
            lambda x: operation.map(x[None], weight).flatten(), x[b]
        ).flatten(1)
        slow = slow_positive_products(x[b].flatten(), jacobian, relevance[b].flatten(), rule_set)
        assert torch.allclose(ours[b].flatten(), slow, rtol=1e-7)


@pytest.mark.parametrize("first", [True, False])
def test_matmul_with_a_constant(first):
    weight = double(3, 4, 4) if first else double(4, 5)
    x = double(2, 3, 4, 4)
    operation = ConstantMatMul(weight, weight_first=first)
    relevance, (ours,) = propagate("stable", operation, x)
    for b in range(2):
        jacobian = torch.autograd.functional.jacobian(
            lambda x: (weight @ x if first else x @ weight).flatten(), x[b]
        ).flatten(1)
        slow = slow_positive_products(x[b].flatten(), jacobian, relevance[b].flatten())
        assert torch.allclose(ours[b].flatten(), slow, rtol=1e-7)


def rescaled(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """The authors' normalisation of two parts, of one sample."""
    sum_a, sum_b, total = float(a.sum()), float(b.sum()), float(relevance.sum())
    both = abs(sum_a) + abs(sum_b)
    return (
        a * guarded(guarded(abs(sum_a), both) * total, sum_a),
        b * guarded(guarded(abs(sum_b), both) * total, sum_b),
    )


@pytest.mark.parametrize("rule_set", SETS)
def test_matmul(rule_set):
    a, b = double(2, 3, 4), double(2, 4, 5)
    relevance, (ours_a, ours_b) = propagate(rule_set, MatMul(), a, b)
    for n in range(2):
        slow_a, slow_b = torch.zeros_like(a[n]), torch.zeros_like(b[n])
        for i, k in itertools.product(range(3), range(5)):
            products = [float(a[n, i, j] * b[n, j, k]) for j in range(4)]
            if rule_set == "stable":
                products = [abs(product) for product in products]
            for j, product in enumerate(products):
                part = guarded(product, sum(products)) * relevance[n, i, k]
                slow_a[i, j] += part
                slow_b[j, k] += part
        if rule_set == "paper":
            slow_a, slow_b = rescaled(slow_a, slow_b, relevance[n])
        else:
            slow_a, slow_b = slow_a / 2, slow_b / 2
        assert torch.allclose(ours_a[n], slow_a, rtol=1e-6)
        assert torch.allclose(ours_b[n], slow_b, rtol=1e-6)


def test_matmul_with_broadcasting():
    a, b = double(2, 3, 4, 5), double(2, 1, 5, 6)
    relevance, (to_a, to_b) = propagate("stable", MatMul(), a, b)
    _, (wide_a, wide_b) = propagate("stable", MatMul(), a, b.expand(2, 3, 5, 6))
    assert to_b.shape == b.shape
    assert to_a.sum() + to_b.sum() == pytest.approx(float(relevance.sum()))
    assert (wide_a.shape, wide_b.shape) == (a.shape, (2, 3, 5, 6))


@pytest.mark.parametrize("rule_set", AUTHORS)
@pytest.mark.parametrize("scale", [1, -1, 0.5])
def test_add_as_the_authors_do_it(rule_set, scale):
    a, b = double(2, 3, 4), double(2, 3, 4)
    relevance, (ours_a, ours_b) = propagate(rule_set, Add(scale), a, b)
    for n in range(2):
        total = a[n] + scale * b[n]
        parts = [x * relevance[n] / (total + 1e-9) for x in (a[n], scale * b[n])]
        slow_a, slow_b = rescaled(*parts, relevance[n])
        assert torch.allclose(ours_a[n], slow_a, rtol=1e-7)
        assert torch.allclose(ours_b[n], slow_b, rtol=1e-7)


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


@pytest.mark.parametrize("rule_set", SETS)
def test_sums_and_means(rule_set):
    x = double(2, 3, 4)
    operation = Function("sum", lambda x: x.mean(1))
    relevance, (ours,) = propagate(rule_set, operation, x)
    size = x.abs() if rule_set == "stable" else x
    for b, d in itertools.product(range(2), range(4)):
        total = float(size[b, :, d].mean())
        for n in range(3):
            slow = guarded(float(size[b, n, d]) / 3, total) * relevance[b, d]
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


@pytest.mark.parametrize("rule_set", AUTHORS)
def test_products_are_not_defined_by_the_authors(rule_set):
    operation = Function("product", torch.mul, name="mul", where="module 'gate'")
    with pytest.raises(NoRuleError, match=r"`mul`, called in module 'gate'.*'\w+' has no rule"):
        propagate(rule_set, operation, double(2, 3), double(2, 3))


@pytest.mark.parametrize("rule_set", SETS)
def test_functions_pass_relevance_unchanged(rule_set):
    relevance, (ours,) = propagate(rule_set, Function("pass", torch.tanh), double(2, 3))
    assert torch.equal(ours, relevance)


@pytest.mark.parametrize("rule_set", SETS)
def test_nothing_divides_by_zero(rule_set):
    zero = torch.zeros(2, 3, 3)
    operations = (
        (Linear(torch.randn(3, 3)), zero),
        (MatMul(), zero, zero),
        (Add(), zero, zero),
        (Function("sum", lambda x: x.sum(1)), zero),
    )
    for operation, *inputs in operations:
        _, results = propagate(rule_set, operation, *inputs)
        assert all(result.isfinite().all() for result in results), operation


def test_a_batch_does_not_mix_in_the_authors_add():
    a, b = double(3, 4, 5), double(3, 4, 5)
    relevance, (together, _) = propagate("reference", Add(), a, b)
    for i in range(3):
        operation = Add()
        operation.tape = Tape()
        operation.tape.batch = 1
        operation.forward(a[i : i + 1], b[i : i + 1])
        alone, _ = rules.get("reference").propagate(operation, relevance[i : i + 1])
        assert torch.allclose(alone[0], together[i])


# Every operation of a whole model ----------------------------------------------------------------


def watched(errors: dict[str, list[float]]) -> RuleSet:
    """The stable rules, noting for each operation how much relevance it gained, lost or negated."""

    def watch(rule):
        def watching(operation: Operation, relevance: Tensor):
            result = rule(operation, relevance)
            parts = result if isinstance(result, tuple) else (result,)
            total = sum(part.double().sum() for part in parts)
            errors.setdefault(operation.name, []).append(
                float((total - relevance.double().sum()).abs() / relevance.double().abs().sum())
            )
            assert all((part >= 0).all() for part in parts), operation.name
            return result

        return watching

    stable = rules.get("stable")
    return RuleSet("watched", {kind: watch(rule) for kind, rule in stable.rules.items()})


def check_every_operation(model: nn.Module, pixels: Tensor) -> None:
    errors: dict[str, list[float]] = {}
    traced = record(model, (pixels,), {}, 0)
    classes = traced.logits.detach().argmax(1, keepdim=True)
    traced.relevance(classes, watched(errors))
    assert {"linear", "matmul", "add", "softmax", "layer_norm"} <= set(errors)
    worst = {name: max(values) for name, values in errors.items()}
    assert max(worst.values()) < 1e-5, worst


def test_stable_conserves_in_every_operation():
    check_every_operation(built(CASES["timm-vit-fused"]), CASES["timm-vit-fused"].inputs())


def test_stable_conserves_in_every_operation_of_the_real_vit(data):
    check_every_operation(real_vit(data), photo(data, "ILSVRC2012_val_00000962.JPEG")[None].float())


# The registry ------------------------------------------------------------------------------------


def test_sets_are_found_by_name():
    assert rules.available()[:3] == list(SETS)
    mine = rules.get("stable").extend("mine", add=lambda op, r: (r, torch.zeros_like(r)))
    assert rules.get(mine) is mine
    with pytest.raises(WhenceError, match=r"no rule set 'stabel'. Available: stable, reference"):
        rules.get("stabel")


def test_a_registered_set_is_found_by_name(monkeypatch):
    monkeypatch.setattr(rules, "_SETS", dict(rules._SETS))
    mine = rules.register(rules.get("stable").extend("mine"))
    assert rules.get("mine") is mine
    assert "mine" in rules.available()


# What the authors ran as their baselines ---------------------------------------------------------


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
                slow[j] += guarded(product, sum(products)) * relevance[b, i]
        assert torch.allclose(ours[b], slow, rtol=1e-7)


def test_colours_are_bounded():
    x, weight = double(2, 3, 4, 4), double(5, 3, 2, 2)
    settings = ([2, 2], [0, 0], [1, 1], 1)
    for rule_set in ("reference", "paper", "authors_lrp"):
        relevance, (ours,) = propagate(rule_set, Convolution(weight, double(5), settings), x)
        for b, row, column in itertools.product(range(2), range(2), range(2)):
            low, high = x[b].min(), x[b].max()
            patch = x[b, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            slow = torch.zeros_like(patch)
            for i in range(5):
                parts = patch * weight[i] - low * weight[i].clamp(min=0)
                parts = parts - high * weight[i].clamp(max=0)
                slow += parts / (parts.sum() + 1e-9) * relevance[b, i, row, column]
            got = ours[b, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert torch.allclose(got, slow, rtol=1e-7)


def test_an_addition_that_is_not_rescaled():
    a, b = double(2, 3), double(2, 3)
    relevance, (to_a, to_b) = propagate("authors_lrp", Add(), a, b)
    for at in itertools.product(range(2), range(3)):
        quotient = guarded(float(relevance[at]), float(a[at] + b[at]))
        assert to_a[at].item() == pytest.approx(float(a[at]) * quotient, rel=1e-9)
        assert to_b[at].item() == pytest.approx(float(b[at]) * quotient, rel=1e-9)


def test_positions_keep_their_part():
    """Under the authors' rules an added constant is a term; elsewhere relevance passes."""
    x, constant = double(2, 4, 3), double(1, 4, 3)
    relevance, (stable,) = propagate("stable", Shift(constant), x)
    assert torch.equal(stable, relevance)
    relevance, (ours,) = propagate("authors_lrp", Shift(constant), x)
    assert torch.allclose(ours, x * relevance / (x + constant + 1e-9), rtol=1e-9)
    relevance, (ours,) = propagate("reference", Shift(constant), x)
    for b in range(2):
        parts = [t * relevance[b] / (x[b] + constant[0] + 1e-9) for t in (x[b], constant[0])]
        sums = [float(part.sum()) for part in parts]
        share = abs(sums[0]) / (abs(sums[0]) + abs(sums[1])) * float(relevance[b].sum())
        assert torch.allclose(ours[b], parts[0] * share / sums[0], rtol=1e-6)


def test_a_set_without_a_rule_for_positions_lets_them_pass():
    bare = RuleSet("bare", {})
    operation = Shift(double(1, 3))
    operation.tape = Tape()
    operation.forward(double(2, 3))
    relevance = torch.rand(2, 3)
    assert torch.equal(bare.propagate(operation, relevance)[0], relevance)


class Unhashable:
    """A rule that can be compared, and so has no hash; it looks at all that it is given."""

    __hash__ = None

    def __init__(self, rule):
        self.rule = rule

    def __call__(self, op, relevance):
        assert relevance.dim() == op.output.dim()
        return self.rule(op, relevance / relevance.abs().sum())


@pytest.mark.parametrize("name", ["stable", "reference"])
@pytest.mark.parametrize("kind", ["linear", "matmul", "add", "pass", "shared"])
def test_a_rule_of_a_user_is_given_one_class_at_a_time(name, kind):
    case = CASES["ViTForImageClassification-sdpa"]
    inputs = {"pixel_values": case.inputs()["pixel_values"].double()}
    theirs = rules.get(name).rules.get(kind, lambda _, relevance: relevance)
    mine = rules.get(name).extend("mine", **{kind: Unhashable(theirs)})
    explain = partial(Explainer(built(case).double()).explain, inputs, method="tiba", rules=mine)
    several = explain(classes=[0, 1]).scores
    for number in range(2):
        alone = explain(target=number).scores
        assert torch.allclose(several[:, number], alone, rtol=1e-10, atol=1e-12 * alone.abs().max())
