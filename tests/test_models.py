"""What whence promises for each model: the same logits and maps, and the model left alone."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tracing.helpers import predicted_classes, record_inputs, to_double
from tests.zoo import CASES, DEPTH, Case, build_model, find_block_modules, run_model, select_samples
from whence import Explainer, rules
from whence._util.defaults import METHOD

RELEVANCE = [name for name in rules.available() if not rules.get(name).is_gradient]


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def model(case: Case) -> nn.Module:
    return build_model(case)


@pytest.fixture(scope="module")
def inputs(case: Case) -> Any:
    return case.inputs()


@pytest.fixture(scope="module")
def result(model: nn.Module, inputs: Any):
    return Explainer(model).explain(inputs, method="gae", keep_evidence=True)


def is_close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> bool:
    """Equal within a fraction of the largest value."""
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


def test_logits_are_those_of_a_plain_forward(model, inputs, result):
    with torch.no_grad():
        plain = run_model(model, inputs)
    assert is_close(result.logits, plain if isinstance(plain, Tensor) else plain.logits, 1e-5)


def test_attention_is_the_librarys_own(case, model, inputs, result):
    _, own = case.attention(model, inputs)
    assert len(result.evidence.attention) == len(own) == DEPTH
    for ours, theirs in zip(result.evidence.attention, own, strict=True):
        assert is_close(ours, theirs, 1e-5)


def test_gradient_is_that_of_plain_autograd(case, model, inputs, result):
    logits, maps = case.attention(model, inputs)
    chosen = logits.gather(1, result.target[:, None]).sum()
    plain = torch.autograd.grad(chosen, maps, allow_unused=True)
    if plain[0] is None:
        pytest.skip("the library does not give the maps that it used")
    for ours, theirs in zip(result.evidence.gradient, plain, strict=True):
        assert is_close(ours, theirs)


def test_scores_are_laid_out_on_the_input(case, inputs, result):
    length = inputs["input_ids"].shape[1] if case.grid is None else case.grid[0] * case.grid[1]
    assert result.grid == case.grid
    assert result.scores.shape == (len(result.logits), length)
    assert result.evidence.attention[0].shape[-1] == length + case.prefix
    assert (result.scores >= 0).all()
    assert (result.scores.amax(1) > 0).all()


def test_pooled_tokens_are_found(case, result):
    pooling = result.evidence.pooling
    expected = torch.zeros_like(pooling)
    expected[:, list(case.pooled)] = 1
    assert torch.equal(pooling > 0, expected > 0)
    assert torch.allclose(pooling.sum(1), torch.ones(len(pooling)))


@pytest.mark.parametrize("rule_set", RELEVANCE)
def test_a_batch_is_as_good_as_single_runs(model, inputs, rule_set):
    explainer = Explainer(copy.deepcopy(model).double())
    inputs = to_double(inputs)
    request = {"target": 1, "method": "tiba", "rules": rule_set}
    together = explainer.explain(inputs, **request).scores
    for i in range(len(together)):
        alone = explainer.explain(select_samples(inputs, slice(i, i + 1)), **request)
        assert is_close(alone.scores[0], together[i], 1e-6)


@pytest.mark.parametrize("method", [METHOD, "tiba"])
def test_padding_changes_nothing(case, model, inputs, method):
    if case.grid is not None:
        pytest.skip("images are not padded")
    explainer = Explainer(model)
    together = explainer.explain(inputs, method=method).scores
    for i, mask in enumerate(inputs["attention_mask"]):
        length = int(mask.sum())
        short = {name: value[i : i + 1, :length] for name, value in inputs.items()}
        alone = explainer.explain(short, method=method).scores[0]
        assert is_close(together[i, :length], alone)
        assert (together[i, length:] == 0).all()


@pytest.mark.parametrize("method", [METHOD, "tiba"])
def test_many_classes_are_as_good_as_one_at_a_time(model, inputs, method):
    explainer = Explainer(model)
    together = explainer.explain(inputs, classes=[0, 2], method=method)
    assert together.target.tolist() == [[0, 2]] * 3
    for column, target in enumerate((0, 2)):
        alone = explainer.explain(inputs, target=target, method=method).scores
        assert is_close(together.scores[:, column], alone)


def test_stable_rules_conserve_relevance_at_every_block(model, inputs):
    hidden: list[Tensor] = []
    watched = copy.deepcopy(model)
    for block in find_block_modules(watched):
        block.register_forward_pre_hook(
            lambda _m, args, kwargs: hidden.append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        )
    trace = record_inputs(watched, inputs)
    assert len(hidden) == DEPTH
    for relevance in trace.read(predicted_classes(trace), hidden, rules.get("stable")):
        totals = relevance[0].flatten(1).sum(1)
        assert torch.allclose(totals, torch.ones_like(totals), atol=1e-4)
        assert (relevance >= 0).all()


def test_model_is_left_as_it_was(model, inputs):
    for training in (False, True):
        model.train(training)
        with assert_unchanged(model):
            Explainer(model).explain(inputs, classes=2)
    model.eval()


def test_model_is_left_as_it_was_after_an_exception(model, inputs):
    def fail(*_: Any) -> None:
        raise RuntimeError("in the middle")

    model.train()
    list(find_block_modules(model))[-1].register_forward_hook(fail)
    with assert_unchanged(model), pytest.raises(RuntimeError, match="in the middle"):
        Explainer(model).explain(inputs)
    list(find_block_modules(model))[-1]._forward_hooks.clear()
    model.eval()


@contextmanager
def assert_unchanged(model: nn.Module) -> Iterator[None]:
    """Assert that nothing about a model changes, bit for bit."""
    before, tensors = _describe(model), copy.deepcopy(model.state_dict())
    yield
    assert _describe(model) == before
    assert model.state_dict().keys() == tensors.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, tensors[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())


def _describe(model: nn.Module) -> list[Any]:
    config = model.config.to_dict() if hasattr(model, "config") else None
    description: list[Any] = [config]
    for name, module in model.named_modules():
        hooks = {k: list(v.values()) for k, v in vars(module).items() if "_hooks" in k and v}
        attributes = {k: id(v) for k, v in vars(module).items()}
        description.append((name, id(module), type(module), module.training, hooks, attributes))
    description += [(n, id(p), p.requires_grad) for n, p in model.named_parameters()]
    return description
