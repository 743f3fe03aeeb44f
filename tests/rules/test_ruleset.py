"""Rule sets: found by name, extended, and given operations one class at a time where needed."""

from functools import partial

import pytest
import torch

from tests.rules.helpers import RELEVANCE_SETS, propagate
from tests.tracing.ops.helpers import double
from tests.zoo import CASES, build_model
from whence import Explainer, NoRuleError, WhenceError, rules
from whence.rules import RuleSet, batched_over_classes, ruleset
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import Linear, MatMul
from whence.tracing.ops.sums import Add, Shift


@pytest.mark.parametrize("rule_set", RELEVANCE_SETS)
def test_functions_pass_relevance_unchanged(rule_set):
    relevance, (ours,) = propagate(rule_set, Function("pass", torch.tanh), double(2, 3))
    assert torch.equal(ours, relevance)


@pytest.mark.parametrize("rule_set", RELEVANCE_SETS)
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


# Sets by name ------------------------------------------------------------------------------------


def test_sets_are_found_by_name():
    names = ["stable", "reference", "paper", "authors_lrp", "balanced", "attnlrp"]
    names += ["residual", "reslrp"]
    assert rules.available() == names
    assert [rules.get(name).name for name in names] == names
    assert [name for name in names if rules.get(name).is_gradient] == names[4:]
    with pytest.raises(WhenceError, match=r"no rule set 'stabel'. Available: stable, reference"):
        rules.get("stabel")


def test_a_registered_set_is_found_by_name(monkeypatch):
    monkeypatch.setattr(ruleset, "_SETS", dict(ruleset._SETS))
    mine = rules.register(rules.get("stable").extend("mine"))
    assert rules.get("mine") is mine
    assert "mine" in rules.available()


def test_a_set_is_extended_by_rules():
    stable = rules.get("stable")
    mine = stable.extend("mine", add=lambda op, r: (r, torch.zeros_like(r)))
    assert rules.get(mine) is mine
    assert mine.rules["linear"] is stable.rules["linear"]
    relevance, (to_a, to_b) = propagate(mine, Add(), double(2, 3), double(2, 3))
    assert torch.equal(to_a, relevance)
    assert not to_b.any()
    # A rule of somebody else's may look at the whole of an operation.
    assert stable.supports_partial
    assert not mine.supports_partial
    assert rules.get("balanced").extend("mine").is_gradient


def test_a_set_without_a_rule_for_positions_lets_relevance_pass():
    relevance, (ours,) = propagate(RuleSet("bare", {}), Shift(double(1, 3)), double(2, 3))
    assert torch.equal(ours, relevance)
    with pytest.raises(NoRuleError, match=r"`add`.*'bare' has no rule.*add=my_rule"):
        propagate(RuleSet("bare", {}), Add(), double(2, 3), double(2, 3))


# Several classes ---------------------------------------------------------------------------------


def test_a_rule_declares_that_it_takes_several_classes():
    operation = Add()
    operation.forward(double(2, 3), double(2, 3))

    def halve(op, relevance):
        return relevance / 2, relevance / 2

    assert not RuleSet("one", {"add": halve}).supports_classes(operation)
    assert RuleSet("all", {"add": batched_over_classes(halve)}).supports_classes(operation)
    operation.reader_count = 2
    shared = {"add": halve, "shared": lambda op, relevance: relevance}
    assert not RuleSet("shared", shared).supports_classes(operation)


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
    explain = partial(
        Explainer(build_model(case).double()).explain, inputs, method="tiba", rules=mine
    )
    several = explain(classes=[0, 1]).scores
    for number in range(2):
        alone = explain(target=number).scores
        assert torch.allclose(several[:, number], alone, rtol=1e-10, atol=1e-12 * alone.abs().max())
