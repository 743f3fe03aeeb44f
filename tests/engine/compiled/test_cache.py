"""Runs that are compiled and run again; what needs a GPU is skipped without one."""

import copy
import shutil
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from whence.engine.compiled.cache import Found, Replays

from tests.zoo import CASES, build_model
from whence import Explainer, Layout, WhenceError
from whence.engine.compiled import cache as replay
from whence.engine.compiled import program as compiling
from whence.engine.request import is_plain

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


class Made:
    """Counts what is made ready to be run again, which computes as it is."""

    def __init__(self):
        self.count = 0
        self.fails = False

    def __call__(self, compute, inputs, answers, expected):
        self.count += 1
        return None if self.fails else compute


@pytest.fixture
def made(monkeypatch):
    made = Made()
    monkeypatch.setattr(replay, "_ready", made)
    return made


def doubled(inputs, sound=True):
    x = inputs["x"]
    return Found(2 * x, x, x, torch.tensor(sound), Layout())


def test_the_first_time_is_not_recorded(made):
    replays, x = Replays(nn.Linear(2, 2)), torch.ones(3)
    assert replays.run("this", {"x": x}, doubled) is None
    found = replays.run("this", {"x": x + 1}, doubled)
    assert torch.equal(found.scores, torch.full((3,), 4.0))
    assert made.count == 1


def test_other_requests_shapes_and_weights_are_other_graphs(made):
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


def test_few_are_kept_the_last_used_ones(made):
    replays, shapes = Replays(nn.Linear(2, 2)), [torch.ones(n) for n in range(1, 10)]
    for x in (*shapes[:8], *shapes[:8]):
        replays.run("this", {"x": x}, doubled)
    assert made.count == 8
    replays.run("this", {"x": shapes[0]}, doubled)
    for _ in range(2):
        replays.run("this", {"x": shapes[8]}, doubled)  # takes the place of the second
    assert made.count == 9
    replays.run("this", {"x": shapes[0]}, doubled)
    assert made.count == 9
    replays.run("this", {"x": shapes[1]}, doubled)
    assert made.count == 10


def test_what_was_seen_once_pushes_nothing_out(made):
    replays, x = Replays(nn.Linear(2, 2)), torch.ones(3)
    for _ in range(2):
        replays.run("this", {"x": x}, doubled)
    for n in range(4, 2000):
        assert replays.run("this", {"x": torch.ones(n)}, doubled) is None
    assert replays.run("this", {"x": x}, doubled) is not None
    assert made.count == 1
    assert len(replays._seen) <= replay._SEEN


def test_what_cannot_be_recorded_is_tried_once(made):
    replays, x = Replays(nn.Linear(2, 2)), torch.ones(3)
    made.fails = True
    assert replays.run("this", {"x": x}, doubled) is None
    assert replays.run("this", {"x": x}, doubled) is not None  # was computed to compare with
    assert replays.run("this", {"x": x}, doubled) is None
    assert replays.run("this", {"x": x}, doubled) is None
    assert made.count == 1


def test_what_is_not_sound_is_not_used(monkeypatch):
    case = CASES["ViTForImageClassification-sdpa"]
    model, inputs = build_model(case), case.inputs()
    runs = []

    def unsound(compute, inputs, answers, expected):
        def run(_):
            runs.append(1)
            return expected._replace(scores=expected.scores + 1, sound=torch.tensor(False))

        return run

    monkeypatch.setattr(replay, "_ready", unsound)
    plain = Explainer(model).explain(inputs, method="tiba").scores
    fast = Explainer(model, compile=True)
    for _ in range(4):
        assert torch.equal(fast.explain(inputs, method="tiba").scores, plain)
    assert len(runs) == 2


def test_weights_of_another_type_at_the_same_place_are_another_graph(made):
    model = nn.Linear(2, 2, bias=False).half()
    replays, x = Replays(model), torch.ones(3)
    replays.run("this", {"x": x}, doubled)
    assert replays.run("this", {"x": x}, doubled) is not None
    model.weight.data = model.weight.data.view(torch.bfloat16)
    assert replays.run("this", {"x": x}, doubled) is None


def test_what_is_on_several_devices_is_not_recorded(made):
    replays = Replays(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")))
    for _ in range(3):
        assert replays.run("this", {"x": torch.ones(3)}, doubled) is None
    assert made.count == 0


def test_a_graph_is_run_by_one_thread_at_a_time(made):
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


def test_copies_begin_anew(made):
    replays, x = Replays(nn.Linear(2, 2)), torch.ones(3)
    replays.run("this", {"x": x}, doubled)
    assert copy.deepcopy(replays).run("this", {"x": x}, doubled) is None
    assert replays.run("this", {"x": x}, doubled) is not None


@pytest.fixture
def explained(made):
    """Explains over and over, and says how often something was made ready for that."""
    case = CASES["ViTForImageClassification-sdpa"]
    model, given = build_model(case), case.inputs()
    fast, plain = Explainer(model, compile=True), Explainer(model)

    def explain(**request):
        expected = plain.explain(given, method="tiba", **request)
        for _ in range(3):
            found = fast.explain(given, method="tiba", **request)
            assert torch.equal(found.target, expected.target)
            assert torch.allclose(found.scores, expected.scores, rtol=1e-3, atol=1e-7)
        return made.count

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
    assert is_plain(value) is plain


@pytest.fixture
def uncompiled(monkeypatch):
    """Written down and cut into pieces, which are then run step by step."""
    count = []

    def module(steps, args):
        count.append(len(steps.graph.nodes))
        return steps

    monkeypatch.setattr(compiling, "compile_graph", module)
    return count


def check(name, method, requests, device="cpu", within=1e-11):
    """Compare what runs again with what is computed plainly, with other inputs of one shape."""
    model, given = build_model(CASES[name]).double().to(device), CASES[name].inputs()

    def of_turn(turn):
        def one(x):
            x = x.to(device, torch.double if x.is_floating_point() else None)
            return x.flip(0) if turn % 2 else x

        return (
            one(given) if isinstance(given, torch.Tensor) else {k: one(v) for k, v in given.items()}
        )

    plain, fast = Explainer(model), Explainer(model, compile=True)
    for request in requests:
        for turn in range(4):
            inputs = of_turn(turn)
            expected = plain.explain(inputs, method=method, **request)
            found = fast.explain(inputs, method=method, **request)
            assert torch.equal(found.target, expected.target)
            assert torch.allclose(found.logits, expected.logits, rtol=1e-12)
            largest = expected.scores.abs().max()
            assert (found.scores - expected.scores).abs().max() <= within * largest
    return fast


REQUESTS = ({"target": 1}, {}, {"classes": [0, 1]}, {"classes": 2})


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout", "attnlrp", "lrp"])
@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "Bert-sdpa"])
def test_runs_again_say_the_same(method, name, uncompiled):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(name, method, REQUESTS[:3:2] if method == "tiba" else REQUESTS[3:])
    assert uncompiled


USUAL = ("timm-vit-fused", "torchvision-vit", "Roberta-sdpa", "DistilBert-eager", "hand-written")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in USUAL else pytest.mark.slow) for n in CASES]
)
def test_any_model_can_run_again(name, uncompiled):
    check(name, "tiba", REQUESTS[1:2])
    assert uncompiled


def test_what_cannot_be_compiled_is_said_once_and_runs_as_it_is(monkeypatch):
    def failing(steps, args):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(compiling, "compile_graph", failing)
    with pytest.warns(UserWarning, match=r"fast=True makes no difference.*: no compiler$") as told:
        check("ViTForImageClassification-sdpa", "tiba", REQUESTS[1:2])
    assert len(told) == 1


def test_what_says_something_else_is_not_used(monkeypatch):
    class Wrong(compiling.Program):
        def __call__(self, *inputs):
            scores, *others = super().__call__(*inputs)
            return scores * 1.1, *others

    monkeypatch.setattr(compiling, "compile_graph", lambda steps, args: steps)
    monkeypatch.setattr(compiling, "Program", Wrong)
    with pytest.warns(UserWarning, match="other scores"):
        check("ViTForImageClassification-sdpa", "tiba", REQUESTS[1:2])


def test_what_a_model_decides_by_values_is_seen(uncompiled):
    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build_model(CASES["ViTForImageClassification-sdpa"])

        def forward(self, pixel_values):
            return self.inner(pixel_values + 1 if pixel_values.sum() > 0 else pixel_values)

    model = Looking().eval()
    inputs = CASES["ViTForImageClassification-sdpa"].inputs()
    plain, fast = Explainer(model), Explainer(model, compile=True)
    for sign in (1, 1, 1, -1, 1, -1):
        given = {"pixel_values": inputs["pixel_values"].abs() * sign}
        expected = plain.explain(given, method="tiba").scores
        assert torch.allclose(fast.explain(given, method="tiba").scores, expected, rtol=1e-4)
    assert uncompiled


def _texts(fast, plain, given, **request):
    for turn in range(4):
        inputs = {name: x.flip(0) if turn == 3 else x for name, x in given.items()}
        expected = plain.explain(inputs, target=0, **request).scores
        assert torch.allclose(fast.explain(inputs, target=0, **request).scores, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("method", "options"), [("attention_flow", {}), ("rollout", {"discard_ratio": 0.5})]
)
def test_methods_that_look_at_values_are_not_recorded(method, options, uncompiled):
    case = CASES["Bert-sdpa"]
    model = build_model(case)
    fast, plain = Explainer(model, compile=True), Explainer(model)
    fast.explain(case.inputs(), method="tiba")  # so that the number of classes is known
    with pytest.warns(UserWarning, match="looked at by"):
        _texts(fast, plain, case.inputs(), method=method, **options)


@pytest.mark.parametrize(
    "factor",
    [
        lambda x: max(x.flatten().tolist()),
        lambda x: float(x.numpy().max()),
        lambda x: 2 if "-" in str(x[0, 0, 0, 0]) else 1,
        lambda x: 1 + len((x > 0.5).nonzero()) / 100,
        lambda x: 1 + len(x[x > 0.5]) / 100,
        lambda x: len(x.sign().unique()),
    ],
)
def test_models_that_look_at_values_unseen_are_not_recorded(factor, uncompiled):
    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build_model(CASES["ViTForImageClassification-sdpa"])

        def forward(self, pixel_values):
            return self.inner(pixel_values * factor(pixel_values.detach()))

    model, pixels = Looking().eval(), CASES["ViTForImageClassification-sdpa"].inputs()
    plain, fast = Explainer(model), Explainer(model, compile=True)

    def compare(sign):
        given = {"pixel_values": pixels["pixel_values"].abs() * sign + sign}
        expected = plain.explain(given, method="tiba").scores
        assert torch.allclose(fast.explain(given, method="tiba").scores, expected, rtol=1e-4)

    compare(1)
    with pytest.warns(UserWarning, match="depends on values"):
        compare(1)
    compare(1)
    compare(-1)


def test_of_equal_logits_the_same_is_explained(uncompiled):
    case = CASES["ViTForImageClassification-sdpa"]
    model = build_model(case)
    model.classifier = nn.Linear(32, 40)
    nn.init.zeros_(model.classifier.weight)
    nn.init.zeros_(model.classifier.bias)
    fast = Explainer(model, compile=True)
    for _ in range(3):
        assert fast.explain(case.inputs(), method="gae").target.tolist() == [0, 0, 0]
    assert uncompiled


def test_more_classes_than_there_are_is_said_each_time(made):
    case = CASES["ViTForImageClassification-sdpa"]
    fast = Explainer(build_model(case), fast=True)
    for _ in range(3):
        with pytest.raises(WhenceError, match="the model has 5 classes"):
            fast.explain(case.inputs(), classes=6)


def test_weights_laid_out_otherwise_at_the_same_place_are_another_graph(made):
    model = nn.Linear(2, 2)
    replays, x = Replays(model), torch.ones(3)
    replays.run("this", {"x": x}, doubled)
    assert replays.run("this", {"x": x}, doubled) is not None
    model.weight.data = model.weight.data.T
    assert replays.run("this", {"x": x}, doubled) is None


def test_an_example_in_doubt_does_not_keep_others_from_being_recorded(uncompiled):
    case = CASES["ViTForImageClassification-sdpa"]
    model, inputs = build_model(case).double(), case.inputs()["pixel_values"].double()
    with torch.no_grad():
        model.vit.layers[0].mlp.fc2.bias[0] = -1000  # far larger than its positive products
    plain, fast = Explainer(model), Explainer(model, compile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for turn in range(4):
            given = {"pixel_values": inputs.flip(0) if turn % 2 else inputs}
            expected = plain.explain(given, method="tiba").scores
            found = fast.explain(given, method="tiba").scores
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12 * expected.abs().max())
    assert uncompiled


def test_another_head_is_another_number_of_classes(made):
    case = CASES["ViTForImageClassification-sdpa"]
    model, inputs = build_model(case), case.inputs()
    fast = Explainer(model, compile=True)
    for _ in range(3):
        fast.explain(inputs, target=0, method="tiba")
    more = 2 * model.classifier.out_features
    model.classifier = nn.Linear(model.classifier.in_features, more)
    for _ in range(3):
        assert fast.explain(inputs, target=more - 1, method="tiba").logits.shape[1] == more


compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler here")


@compiler
def test_compiled_runs_say_the_same():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*fast=True.*")
        check("ViTForImageClassification-sdpa", "tiba", REQUESTS[:1])


@compiler
@pytest.mark.slow
@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout", "attnlrp", "lrp"])
@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "Bert-sdpa"])
def test_every_tuned_method_compiled(method, name):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*fast=True.*")
        check(name, method, REQUESTS[1:3])


@gpu
@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "Bert-sdpa"])
def test_graphs_say_the_same(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*fast=True.*")
        check(name, "tiba", REQUESTS[::2], "cuda")


@gpu
def test_weights_that_changed_are_seen():
    case = CASES["ViTForImageClassification-sdpa"]
    model, inputs = build_model(case).cuda(), {"pixel_values": case.inputs()["pixel_values"].cuda()}
    fast = Explainer(model, compile=True)
    before = [fast.explain(inputs, target=0, method="tiba").scores for _ in range(3)][-1]
    with torch.no_grad():
        model.classifier.weight.mul_(-1)
    after = fast.explain(inputs, target=0, method="tiba").scores
    assert torch.allclose(
        after, Explainer(model).explain(inputs, target=0, method="tiba").scores, rtol=1e-4
    )
    assert not torch.allclose(after, before, rtol=1e-2)
