"""Recorded runs: what needs a GPU is skipped without one; how graphs are kept is not."""

import copy
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from tests.zoo import CASES, built
from whence import Explainer, Layout, replay
from whence.explainer import _is_plain
from whence.replay import Found, Replays

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


class OnPaper:
    """Stands for a graph: computes anew, and counts."""

    made = 0
    fails = False

    def __init__(self, inputs, compute):
        OnPaper.made += 1
        self.compute = compute

    def __call__(self, inputs):
        if OnPaper.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        return self.compute(inputs)


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(replay, "_Graph", OnPaper)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(OnPaper, "made", 0)
    monkeypatch.setattr(OnPaper, "fails", False)
    return OnPaper


def doubled(inputs, sound=True):
    x = inputs["x"]
    return Found(2 * x, x, x, torch.tensor(sound), Layout())


def test_the_first_time_is_not_recorded(graphs):
    replays, x = Replays(nn.Linear(2, 2)), torch.ones(3)
    assert replays.run("this", {"x": x}, doubled) is None
    found = replays.run("this", {"x": x + 1}, doubled)
    assert torch.equal(found.scores, torch.full((3,), 4.0))
    assert graphs.made == 1


def test_other_requests_shapes_and_weights_are_other_graphs(graphs):
    model = nn.Linear(2, 2)
    replays, x = Replays(model), torch.ones(3)
    replays.run("this", {"x": x}, doubled)
    assert replays.run("that", {"x": x}, doubled) is None
    assert replays.run("this", {"x": torch.ones(4)}, doubled) is None
    assert replays.run("this", {"x": x.double()}, doubled) is None
    assert replays.run("this", {"x": x.double()}, doubled) is not None
    model.weight.data.mul_(2)  # the same memory
    assert replays.run("this", {"x": x.double()}, doubled) is not None
    model.weight.data = model.weight.data.clone()
    assert replays.run("this", {"x": x.double()}, doubled) is None
    model.eval()
    assert replays.run("this", {"x": x.double()}, doubled) is None


def test_few_graphs_are_kept_the_last_used_ones(graphs):
    replays, x = Replays(nn.Linear(2, 2)), torch.ones(3)
    for what in ("a", "b", "c"):
        replays.run(what, {"x": x}, doubled)
    assert replays.run("a", {"x": x}, doubled) is not None
    replays.run("d", {"x": x}, doubled)  # takes the place of b
    assert replays.run("a", {"x": x}, doubled) is not None
    assert replays.run("b", {"x": x}, doubled) is None


def test_what_cannot_be_recorded_is_tried_once(graphs, monkeypatch):
    replays, x = Replays(nn.Linear(2, 2)), torch.ones(3)
    replays.run("this", {"x": x}, doubled)
    monkeypatch.setattr(graphs, "fails", True)
    assert replays.run("this", {"x": x}, doubled) is None
    monkeypatch.setattr(graphs, "fails", False)
    assert replays.run("this", {"x": x}, doubled) is None
    assert graphs.made == 1


def test_what_is_not_sound_is_not_used(graphs):
    replays, x = Replays(nn.Linear(2, 2)), torch.ones(3)
    unsound = lambda inputs: doubled(inputs, sound=False)  # noqa: E731
    replays.run("this", {"x": x}, unsound)
    assert replays.run("this", {"x": x}, unsound) is None


def test_weights_of_another_type_at_the_same_place_are_another_graph(graphs):
    model = nn.Linear(2, 2, bias=False).half()
    replays, x = Replays(model), torch.ones(3)
    replays.run("this", {"x": x}, doubled)
    assert replays.run("this", {"x": x}, doubled) is not None
    model.weight.data = model.weight.data.view(torch.bfloat16)
    assert replays.run("this", {"x": x}, doubled) is None


def test_what_is_on_several_devices_is_not_recorded(graphs):
    replays = Replays(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")))
    for _ in range(3):
        assert replays.run("this", {"x": torch.ones(3)}, doubled) is None
    assert graphs.made == 0


def test_a_graph_is_run_by_one_thread_at_a_time(graphs):
    replays, inside, most = Replays(nn.Linear(2, 2)), [], []

    def slow(inputs):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        return doubled(inputs)

    replays.run("this", {"x": torch.ones(3)}, slow)
    given = [{"x": torch.full((3,), float(n))} for n in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda inputs: replays.run("this", inputs, slow), given))
    assert [float(one.scores[0]) for one in found] == [2.0 * n for n in range(8)]
    assert set(most) == {1}


def test_copies_begin_anew(graphs):
    replays, x = Replays(nn.Linear(2, 2)), torch.ones(3)
    replays.run("this", {"x": x}, doubled)
    assert copy.deepcopy(replays).run("this", {"x": x}, doubled) is None
    assert replays.run("this", {"x": x}, doubled) is not None


class OnAGpu(torch.Tensor):
    """Stands for an input on a GPU."""

    is_cuda = True


@pytest.fixture
def explained(graphs, monkeypatch):
    """Explains as if on a GPU, and says how many graphs that took."""
    case = CASES["ViTForImageClassification-sdpa"]
    model, given = built(case), case.inputs()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("whence.tracing.rules.compiled", lambda function: function)
    fast, plain = Explainer(model, fast=True), Explainer(model)

    def explain(**request):
        pixels = given["pixel_values"].as_subclass(OnAGpu)
        expected = plain.explain(given, method="tiba", **request)
        for _ in range(3):
            found = fast.explain({"pixel_values": pixels}, method="tiba", **request)
            assert torch.equal(found.target.as_subclass(torch.Tensor), expected.target)
            assert torch.allclose(
                found.scores.as_subclass(torch.Tensor), expected.scores, rtol=1e-3, atol=1e-7
            )
        return graphs.made

    explain.fast, explain.plain = fast, plain
    return explain


@pytest.mark.parametrize("number", [1, np.int64(1), torch.tensor(1)])
def test_a_number_of_classes_is_a_number_however_it_is_written(explained, number):
    explained(target=0)  # so that the number of classes is known
    explained(classes=number)


def test_another_layout_is_another_graph(explained):
    before = explained(target=0)
    for explainer in (explained.fast, explained.plain):
        explainer.layout = Layout(pooled=(1,))
    assert explained(target=0) > before


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": [1, 2.0, ("b", None)], "c": True}, True),
        ({"a": [torch.ones(2)]}, False),
        ({"a": object()}, False),
    ],
)
def test_only_what_can_be_read_from_how_it_is_written_is_recorded(value, plain):
    assert _is_plain(value) is plain


def test_without_a_gpu_fast_changes_nothing():
    case = CASES["ViTForImageClassification-sdpa"]
    model, inputs = built(case), case.inputs()
    plain = Explainer(model).explain(inputs, method="tiba").scores
    fast = Explainer(model, fast=True)
    for _ in range(3):
        assert torch.equal(fast.explain(inputs, method="tiba").scores, plain)


@gpu
@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout", "attnlrp", "lrp"])
@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "Bert-sdpa"])
def test_recorded_runs_say_the_same(method, name):
    model = built(CASES[name]).double().cuda()
    given = {k: v.cuda() for k, v in CASES[name].inputs().items()}
    given = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    plain, fast = Explainer(model), Explainer(model, fast=True)
    for request in ({"target": 1}, {}, {"classes": [0, 2]}, {"classes": 2}):
        for turn in range(4):
            inputs = {k: v.flip(0) if turn % 2 else v for k, v in given.items()}
            expected = plain.explain(inputs, method=method, **request)
            found = fast.explain(inputs, method=method, **request)
            assert torch.equal(found.target, expected.target)
            assert torch.allclose(found.logits, expected.logits, rtol=1e-12)
            largest = expected.scores.abs().max()
            assert (found.scores - expected.scores).abs().max() < 1e-11 * largest


@gpu
def test_weights_that_changed_are_seen():
    case = CASES["ViTForImageClassification-sdpa"]
    model, inputs = built(case).cuda(), {"pixel_values": case.inputs()["pixel_values"].cuda()}
    fast = Explainer(model, fast=True)
    before = [fast.explain(inputs, target=0, method="tiba").scores for _ in range(3)][-1]
    with torch.no_grad():
        model.classifier.weight.mul_(-1)
    after = fast.explain(inputs, target=0, method="tiba").scores
    assert torch.allclose(
        after, Explainer(model).explain(inputs, target=0, method="tiba").scores, rtol=1e-4
    )
    assert not torch.allclose(after, before, rtol=1e-2)
