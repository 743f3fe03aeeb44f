"""Compiled explanations are those of the eager run, and anything else is refused or falls back."""

import dataclasses
import io
import shutil
import sys
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tracing.helpers import to_double
from tests.zoo import CASES, build_model, make_images
from whence import Explainer, WhenceError, methods
from whence.engine.compiled import making, program
from whence.explanation import Check
from whence.methods import registry

VIT = "ViTForImageClassification-sdpa"
NOT_COMPILED = "cannot be compiled for these inputs"
NOT_FUSED = "cannot be fused for these inputs"

compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler here")
never_refused = pytest.mark.filterwarnings(f"error:.*{NOT_COMPILED}", f"error:.*{NOT_FUSED}")


def flip(inputs):
    """The samples in the other order."""
    if isinstance(inputs, Tensor):
        return inputs.flip(0)
    return {name: value.flip(0) for name, value in inputs.items()}


def without_rounding(one: Check) -> Check:
    return dataclasses.replace(one, figure=round(one.figure, 12))


def check(
    name: str,
    method: str,
    requests,
    device: str = "cpu",
    tolerance: float = 1e-11,
    fused: bool = False,
) -> Explainer:
    """Compare compiled with eager explanations, of other inputs of the same shapes too."""
    model, inputs = build_model(CASES[name]).double().to(device), to_double(CASES[name].inputs())
    if isinstance(inputs, Tensor):
        inputs = inputs.to(device)
    else:
        inputs = {key: value.to(device) for key, value in inputs.items()}
    plain, compiling = Explainer(model), Explainer(model, compile=True)
    for request in requests:
        if fused:
            compiling.compile(inputs, method=method, **request)
        for given in (inputs, flip(inputs), inputs):
            expected = plain.explain(given, method=method, **request)
            found = compiling.explain(given, method=method, **request)
            assert torch.equal(found.target, expected.target)
            # Only of a method that reads relevance at the input does a program read it.
            left_out = () if method == "lrp" else ("conservation",)
            measured = [one for one in expected.checks if one.name not in left_out]
            assert list(map(without_rounding, found.checks)) == list(
                map(without_rounding, measured)
            )
            assert torch.allclose(found.logits, expected.logits, rtol=1e-12)
            largest = expected.scores.abs().max()
            assert (found.scores - expected.scores).abs().max() <= tolerance * largest
    return compiling


REQUESTS = ({"target": 1}, {}, {"classes": [0, 1]}, {"classes": 2})


@never_refused
@pytest.mark.parametrize(
    "method",
    [
        "whence",
        "tiba",
        "gae",
        "reslrp",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("rollout", "lrp")),
    ],
)
@pytest.mark.parametrize("name", [VIT, "Bert-sdpa"])
def test_compiled_explanations_are_those_of_the_eager_run(method, name, programs):
    requests = REQUESTS[:3:2] if (method, name) == ("tiba", VIT) else REQUESTS[3:]
    check(name, method, requests)
    assert len(programs) == len(requests)


USUAL = ("timm-vit-fused", "Roberta-sdpa", "hand-written")


@never_refused
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in USUAL else pytest.mark.slow) for n in CASES]
)
def test_any_model_can_be_compiled(name, programs):
    check(name, "tiba", REQUESTS[1:2])
    assert len(programs) == 1


# When programs are made --------------------------------------------------------------------------


@pytest.fixture
def model():
    return build_model(CASES[VIT])


@pytest.fixture
def inputs():
    return CASES[VIT].inputs()


def test_a_program_is_made_at_first_use(model, inputs, programs):
    explainer = Explainer(model, compile=True)
    assert programs == []
    explainer.explain(inputs, method="tiba")
    assert len(programs) == 1
    explainer.explain(inputs, method="tiba")
    assert len(programs) == 1
    explainer.explain(inputs, method="gae")
    assert len(programs) == 2


def test_nothing_is_compiled_unless_asked_for(model, inputs, programs):
    explainer = Explainer(model)
    for _ in range(4):
        explainer.explain(inputs, method="tiba")
    assert programs == []


@pytest.fixture
def runs(monkeypatch, programs) -> list:
    """One item for each run of a program."""
    runs = []

    class CountedProgram(making.Program):
        def __call__(self, *inputs):
            runs.append(1)
            return super().__call__(*inputs)

    monkeypatch.setattr(making, "Program", CountedProgram)
    return runs


def test_what_was_compiled_beforehand_is_used(model, inputs, programs, runs):
    explainer = Explainer(model)
    assert explainer.compile(inputs, method="tiba") is None
    assert len(programs) == 1
    runs.clear()
    found = explainer.explain(flip(inputs), method="tiba")
    assert len(runs) == 1
    expected = Explainer(model).explain(flip(inputs), method="tiba")
    assert torch.allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-7)
    # Anything else is explained without, and nothing more is compiled.
    explainer.explain(inputs, method="gae")
    explainer.explain(inputs, method="tiba", target=1)
    explainer.explain({"pixel_values": inputs["pixel_values"][:2]}, method="tiba")
    assert len(runs) == len(programs) == 1


@pytest.mark.slow
def test_compiling_beforehand_takes_what_explaining_takes(model, inputs, programs, runs):
    explainer = Explainer(model)
    request = {"classes": [0, 2], "method": "tiba", "rules": "reference", "start_layer": 1}
    explainer.compile(inputs, **request)
    runs.clear()
    explainer.explain(inputs, **request)
    assert len(runs) == len(programs) == 1
    with pytest.raises(WhenceError, match="no method 'tibba'"):
        explainer.compile(inputs, method="tibba")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_in_a_terminal(model, inputs, programs, monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    Explainer(model).compile(inputs, method="gae")
    assert "Compiling gae for 3 input(s): recording" in shown.getvalue()
    assert len(programs) == 1


def test_a_number_of_classes_is_one_however_it_is_written(model, inputs, programs):
    plain, compiling = Explainer(model), Explainer(model, compile=True)
    expected = plain.explain(inputs, classes=1, method="gae")
    for number in (1, np.int64(1), torch.tensor(1)):
        found = compiling.explain(inputs, classes=number, method="gae")
        assert torch.equal(found.target, expected.target)
        assert torch.allclose(found.scores, expected.scores, rtol=1e-3, atol=1e-7)
    assert len(programs) == 1


def test_more_classes_than_there_are_is_an_error_each_time(model, inputs, programs):
    compiling = Explainer(model, compile=True)
    for _ in range(3):
        with pytest.raises(WhenceError, match="the model has 5 classes"):
            compiling.explain(inputs, classes=6)


def test_of_equal_logits_the_same_class_is_explained(model, inputs, programs):
    model.classifier = nn.Linear(32, 40)
    nn.init.zeros_(model.classifier.weight)
    nn.init.zeros_(model.classifier.bias)
    compiling = Explainer(model, compile=True)
    for _ in range(3):
        assert compiling.explain(inputs, method="gae").target.tolist() == [0, 0, 0]
    assert len(programs) == 1


# What cannot be compiled -------------------------------------------------------------------------


def test_what_cannot_be_fused_warns_once_and_runs_as_recorded(monkeypatch):
    def fail(graph, inputs):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(program, "compile_graph", fail)
    monkeypatch.setattr(making, "precompile_header", lambda: None)
    with pytest.warns(UserWarning, match=rf"{NOT_FUSED}.*: no compiler$") as warned:
        check(VIT, "tiba", REQUESTS[1:2], fused=True)
    assert len(warned) == 1


def test_without_a_compiler_operators_run_as_recorded(monkeypatch):
    def fail():
        raise ModuleNotFoundError("no module torch._inductor")

    monkeypatch.setattr(making, "precompile_header", fail)
    with pytest.warns(UserWarning, match=rf"{NOT_FUSED}.*: no module torch._inductor$"):
        check(VIT, "tiba", REQUESTS[1:2], fused=True)


def test_fused_operators_with_other_scores_are_not_used(monkeypatch):
    def compile_wrongly(graph, inputs):
        return lambda *args: [value * 1.1 for value in graph(*args)]

    monkeypatch.setattr(program, "compile_graph", compile_wrongly)
    monkeypatch.setattr(making, "precompile_header", lambda: None)
    with pytest.warns(UserWarning, match=rf"{NOT_FUSED}.*other scores"):
        check(VIT, "tiba", REQUESTS[1:2], fused=True)


def test_a_computation_that_cannot_be_recorded_warns_once_and_is_explained_eagerly(monkeypatch):
    def fail(compute, inputs):
        raise RuntimeError("an operator\nand more")

    monkeypatch.setattr(program, "record_graph", fail)
    with pytest.warns(UserWarning, match=rf"{NOT_COMPILED}.*: an operator$") as warned:
        check(VIT, "tiba", REQUESTS[1:2])
    assert len(warned) == 1


class BesideAttention(nn.Module):
    """A text model with a product by einsum between two attentions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.weight = nn.Embedding(9, 6), nn.Parameter(torch.randn(6, 6))
        self.qkv = nn.ModuleList(nn.Linear(6, 18) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for qkv in self.qkv:
            q, k, v = qkv(x)[:, None].chunk(3, -1)
            x = x + ((q @ k.mT).softmax(-1) @ v)[:, 0]
            x = x + torch.einsum("bnd,de->bne", x, self.weight)
        return self.head(x.mean(1))


@never_refused
def test_what_lies_beside_attention_is_compiled(programs):
    """That no tokens meet there is shown by gradients of numbers without a pattern."""
    model, ids = BesideAttention().double().eval(), torch.tensor([[3, 1, 4, 2], [5, 7, 0, 8]])
    compiling, plain = Explainer(model, compile=True), Explainer(model)
    for given in (ids, ids.flip(0)):
        found = compiling.explain(given, 0, method="gae").scores
        assert torch.allclose(found, plain.explain(given, 0, method="gae").scores, rtol=1e-10)
    assert len(programs) == 1


class OtherDepth(nn.Module):
    """Two layers of attention; the second class is read before the last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.ModuleList(nn.Linear(6, 18) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        states = [x]
        for qkv in self.qkv:
            q, k, v = qkv(states[-1])[:, None].chunk(3, -1)
            states.append(states[-1] + ((q @ k.mT).softmax(-1) @ v)[:, 0])
        read = zip(self.heads, (states[2], states[1]), strict=True)
        return torch.cat([head(state.mean(1)) for head, state in read], 1)


@pytest.mark.parametrize("method", ["whence", "gae", "attnlrp"])
def test_samples_whose_classes_read_other_layers_are_explained_eagerly(method):
    model, inputs = OtherDepth().double().eval(), torch.randn(2, 5, 6).double()
    compiling = Explainer(model, compile=True)
    with pytest.warns(UserWarning, match=NOT_COMPILED):
        found = compiling.explain(inputs, [0, 1], method=method)
    expected = Explainer(model).explain(inputs, [0, 1], method=method)
    assert torch.equal(found.scores, expected.scores)


def test_a_program_with_other_scores_is_not_used(monkeypatch, programs):
    class WrongProgram(making.Program):
        def __call__(self, *inputs):
            scores, *others = super().__call__(*inputs)
            return scores * 1.1, *others

    monkeypatch.setattr(making, "Program", WrongProgram)
    with pytest.warns(UserWarning, match="other scores") as warned:
        check(VIT, "tiba", REQUESTS[1:2])
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("method", "options"), [("attention_flow", {}), ("rollout", {"discard_ratio": 0.5})]
)
def test_methods_that_convert_values_are_not_compiled(method, options):
    case = CASES["Bert-sdpa"]
    plain, compiling = Explainer(build_model(case)), Explainer(build_model(case), compile=True)

    def compare(inputs):
        expected = plain.explain(inputs, target=0, method=method, **options).scores
        found = compiling.explain(inputs, target=0, method=method, **options).scores
        assert torch.allclose(found, expected, rtol=1e-4)

    with pytest.warns(UserWarning, match=f"{NOT_COMPILED}.*depends on values"):
        compare(case.inputs())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(flip(case.inputs()))


def test_methods_with_details_are_not_compiled(monkeypatch, model, inputs):
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))

    @methods.register("detailed")
    @dataclass(frozen=True)
    class Detailed(methods.Method):
        needs: ClassVar = ("attention",)

        def __call__(self, evidence):
            evidence.details = [
                [{"class": c} for c in row] for row in evidence.targets.indices.tolist()
            ]
            return evidence.pooling

    with pytest.warns(UserWarning, match=NOT_COMPILED):
        found = Explainer(model, compile=True).explain(inputs, target=2, method="detailed")
    assert found.details == [{"class": 2}] * 3


# Guards ------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A classifier of images times a factor that depends on their values."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.inner = build_model(CASES[VIT])

    def forward(self, pixel_values):
        return self.inner(pixel_values * self.factor(pixel_values.detach()))


@never_refused
def test_where_a_model_branches_on_values_a_guard_decides(programs, runs):
    model = Scaled(lambda x: 2 if x.sum() > 0 else 1).eval()
    plain, compiling = Explainer(model), Explainer(model, compile=True)
    for sign in (1, 1, -1, 1, -1):
        given = {"pixel_values": make_images(32, 32).abs() * sign}
        expected = plain.explain(given, method="tiba").scores
        runs.clear()
        assert torch.allclose(compiling.explain(given, method="tiba").scores, expected, rtol=1e-4)
        assert runs  # the program ran, whether or not its guards held
    assert len(programs) == 1


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
@pytest.mark.usefixtures("programs")
def test_models_that_no_guard_can_watch_are_not_compiled(factor):
    model = Scaled(factor).eval()
    plain, compiling = Explainer(model), Explainer(model, compile=True)

    def compare(sign):
        given = {"pixel_values": make_images(32, 32).abs() * sign + sign}
        expected = plain.explain(given, method="gae").scores
        assert torch.allclose(compiling.explain(given, method="gae").scores, expected, rtol=1e-4)

    with pytest.warns(UserWarning, match="depends on values"):
        compare(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(1)
        compare(-1)


@never_refused
def test_an_example_whose_shortcut_fails_can_be_compiled(model, inputs, programs):
    model = model.double()
    with torch.no_grad():
        model.vit.layers[0].mlp.fc2.bias[0] = -1000  # far larger than its positive products
    plain, compiling = Explainer(model), Explainer(model, compile=True)
    for given in (to_double(inputs), flip(to_double(inputs))):
        expected = plain.explain(given, method="tiba").scores
        found = compiling.explain(given, method="tiba").scores
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12 * expected.abs().max())
    assert len(programs) == 1


# Real compilers ----------------------------------------------------------------------------------


@compiler
@never_refused
def test_explanations_by_the_real_compiler():
    check(VIT, "whence", REQUESTS[:1], fused=True)


@compiler
@never_refused
@pytest.mark.slow
@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout", "attnlrp", "reslrp", "lrp"])
@pytest.mark.parametrize("name", [VIT, "Bert-sdpa"])
def test_every_tuned_method_by_the_real_compiler(method, name):
    check(name, method, REQUESTS[1:3], fused=True)
