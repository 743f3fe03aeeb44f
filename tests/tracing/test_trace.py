"""One recorded forward pass serves all readings, and nothing is left behind."""

import gc
import threading
import weakref

import pytest
import torch
from torch import Tensor, nn

from tests.tracing.helpers import record_case
from tests.zoo import CASES, HandWrittenViT, build_model, make_images
from whence import Explainer, NoRuleError, WhenceError, rules
from whence.tracing import record
from whence.tracing.recorded_node import RecordedNode
from whence.tracing.recording import edge_of


@pytest.fixture
def model() -> nn.Module:
    return HandWrittenViT().eval()


def explain(model: nn.Module, **options) -> Tensor:
    """Scores by a method that reads gradients and relevance."""
    return Explainer(model).explain(make_images(32, 32), method="tiba", **options).scores


def test_one_forward_serves_all_readings(model):
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    Explainer(model).explain(make_images(32, 32), classes=5, keep_evidence=True)
    assert len(calls) == 1


def test_no_gradient_of_a_weight_is_ever_computed(model):
    trace = record(model, (make_images(32, 32),), {}, 0)
    nodes, waiting = set(), [trace.logits.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting.extend(upstream for upstream, _ in node.next_functions)
    leaves = [node.variable for node in nodes if node.name().endswith("AccumulateGrad")]
    assert len(leaves) == 1
    assert leaves[0] is trace.leaves[0]


def test_existing_gradients_stay(model):
    model(make_images(32, 32)).sum().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    explain(model)
    assert all(torch.equal(p.grad, before[name]) for name, p in model.named_parameters())


def test_frozen_models_are_explained_alike(model):
    expected = explain(model)
    assert torch.equal(explain(model.requires_grad_(False)), expected)


@pytest.mark.parametrize("name", ["hand-written", "Albert-sdpa", "ViTForImageClassification-sdpa"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_graph_is_freed_at_once(name, fails, monkeypatch):
    """No cycle holds the activations back: they go without the garbage collector."""
    explainer, inputs = Explainer(build_model(CASES[name])), CASES[name].inputs()
    operations: list[weakref.ref] = []
    forward = RecordedNode.forward

    def watch(ctx, operation, *args):
        operations.append(weakref.ref(operation))
        return forward(ctx, operation, *args)

    stable = rules.get("stable")
    without_add = {kind: rule for kind, rule in stable.rules.items() if kind != "add"}
    monkeypatch.setattr(RecordedNode, "forward", staticmethod(watch))
    gc.collect()
    gc.disable()
    try:
        if fails:
            with pytest.raises(NoRuleError, match="`add`"):
                explainer.explain(
                    inputs, method="tiba", rules=rules.RuleSet("without add", without_add)
                )
        else:
            explainer.explain(inputs, method="tiba")
        assert operations
        assert [one() for one in operations if one() is not None] == []
    finally:
        gc.enable()


def test_threads_do_not_meet(model):
    inputs = [make_images(32, 32) + i for i in range(4)]
    rule_sets = ("stable", "reference") * 2
    explainer = Explainer(model)
    expected = [
        explainer.explain(x, method="tiba", rules=how).scores
        for x, how in zip(inputs, rule_sets, strict=True)
    ]
    results: dict[int, list[Tensor]] = {i: [] for i in range(4)}

    def work(i: int) -> None:
        for _ in range(3):
            result = explainer.explain(inputs[i], method="tiba", rules=rule_sets[i])
            results[i].append(result.scores)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, found in results.items():
        assert len(found) == 3
        assert all(torch.equal(one, expected[i]) for one in found)


# Readings ----------------------------------------------------------------------------------------


def test_the_logits_of_a_sample_are_read_alone(model):
    x = make_images(32, 32).double()
    trace = record(model.double(), (x,), {}, 0)
    plain = x.clone().requires_grad_()
    for sample in range(3):
        (expected,) = torch.autograd.grad(model(plain)[sample].sum(), plain)
        (found,) = trace.read_sample(trace.leaves, sample)
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert not found[[i for i in range(3) if i != sample]].any()


def test_tokens_are_split_whether_samples_or_tokens_come_first():
    trace = record_case("hand-written")
    batch, tokens = trace.batch, trace.sites[0].key_count
    addition = next(entry for entry in trace.entries if entry.operation.kind == "add")
    value = addition.operation.output
    assert value.shape == (batch, tokens, 32)
    assert torch.equal(trace.split_tokens(value, addition.output, value.shape), value)
    turned = value.transpose(0, 1)
    assert torch.equal(trace.split_tokens(turned, addition.output, turned.shape), value)
    classes = torch.stack([value, 2 * value])
    folded = classes.flatten(1, 2)
    found = trace.split_tokens(folded, addition.output, folded.shape[1:])
    assert torch.equal(found, classes)
    with pytest.raises(WhenceError, match=r"not laid out as 3 sample\(s\) of 17 tokens"):
        trace.split_tokens(value[:, 1:], addition.output, value[:, 1:].shape)


def test_attention_maps_are_those_of_the_sites():
    trace = record_case("timm-vit-fused")
    for map_, site in zip(trace.attention(), trace.sites, strict=True):
        assert map_.shape == (trace.batch, 3, site.query_count, site.key_count)
        assert not map_.requires_grad
        assert torch.allclose(map_.sum(-1), torch.ones_like(map_[..., 0]))


def test_a_place_may_be_a_tensor_or_an_edge(model):
    trace = record(model, (make_images(32, 32),), {}, 0)
    classes, weights = torch.zeros(3, 1, dtype=torch.long), trace.sites[0].weights
    a, b = trace.read(classes, [weights, edge_of(weights)])
    assert torch.equal(a, b)
    assert a.abs().max() > 0


def test_a_backward_pass_may_start_anywhere(model):
    """What logits give at a place is what the place's own gradient gives from there on."""
    trace = record(model, (make_images(32, 32),), {}, 0)
    targets = torch.tensor([[1]] * 3)
    place = trace.entries[trace.sites[-1].product.index].output
    (at_place,) = trace.read(targets, [place])
    (expected,) = trace.read(targets, [trace.sites[-1].weights])
    found = dict(trace.iterate_backward([at_place], [trace.sites[-1].weights], [None], start=place))
    assert torch.allclose(found[0][0], expected)
