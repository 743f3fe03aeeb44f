"""What recurs is recorded unasked, and counts only while it has the logits of the model itself."""

import dataclasses
import warnings

import pytest
import torch

import whence
from tests.zoo import CASES, build_model
from whence import Explainer, WhenceError
from whence.engine.compiled import run

BEFORE = 3


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    """As on a GPU, but sooner."""
    monkeypatch.setattr(run, "_RECORDED_UNASKED", ("cpu",))
    monkeypatch.setattr(run, "_USES_BEFORE_RECORDING", BEFORE)


@pytest.fixture
def counted(monkeypatch):
    """The methods that programs were recorded for."""
    recorded, record = [], run.record_program

    def count(name, *args):
        recorded.append(name)
        return record(name, *args)

    monkeypatch.setattr(run, "record_program", count)
    return recorded


def build():
    case = CASES["ViTForImageClassification-sdpa"]
    return build_model(case), case.inputs()["pixel_values"]


def explain_often(explainer, inputs, times=BEFORE, **options):
    for _ in range(times):
        found = explainer.explain(inputs, **options)
    return found


@pytest.mark.parametrize("method", ["whence", "gae", "tiba", "attnlrp", "rollout"])
def test_a_recorded_result_is_the_plain_one_in_all_it_tells(counted, method):
    model, inputs = build()
    explainer, plain = Explainer(model), Explainer(model, compile=False)
    explain_often(explainer, inputs, method=method)
    assert counted == []
    found = explain_often(explainer, inputs, times=2, method=method)
    assert counted == [method]
    expected = plain.explain(inputs, method=method)
    torch.testing.assert_close(found.scores, expected.scores)
    torch.testing.assert_close(found.logits, expected.logits)
    assert torch.equal(found.target, expected.target)
    assert [c.name for c in found.checks] == [c.name for c in expected.checks]
    assert [c.status for c in found.checks] == [c.status for c in expected.checks]
    for one, other in zip(found.checks, expected.checks, strict=True):
        assert one.figure == pytest.approx(other.figure, abs=1e-5)


def test_other_values_and_targets_use_the_same_program(counted):
    model, inputs = build()
    explainer, plain = Explainer(model), Explainer(model, compile=False)
    explain_often(explainer, inputs)
    for target in (0, 1, 2):
        values = torch.randn_like(inputs)
        found = explainer.explain(values, target=target)
        torch.testing.assert_close(found.scores, plain.explain(values, target=target).scores)
    assert len(counted) == 1


def test_weights_may_change(counted):
    model, inputs = build()
    explainer = Explainer(model)
    explain_often(explainer, inputs, BEFORE + 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    found = explainer.explain(inputs)
    torch.testing.assert_close(found.scores, Explainer(model, compile=False).explain(inputs).scores)
    assert len(counted) == 1


@pytest.mark.parametrize("change", ["hook", "class", "global"])
def test_a_model_that_computes_something_else_is_explained_as_it_is_now(change, monkeypatch):
    model, inputs = build()
    scale = {"by": 1.0}
    kind, forward = type(model), type(model).forward

    def scaled(self, *args, **kwargs):
        returned, by = forward(self, *args, **kwargs), scale["by"]
        logits = returned.logits
        return dataclasses.replace(returned, logits=logits + (by - 1) * logits.flip(1))

    if change == "global":
        monkeypatch.setattr(kind, "forward", scaled)
    explainer = Explainer(model)
    before = explain_often(explainer, inputs, BEFORE + 1, target=0)
    if change == "hook":
        flip = lambda module, args, out: dataclasses.replace(out, logits=-out.logits)  # noqa: E731
        model.register_forward_hook(flip)
    elif change == "class":
        scale["by"] = 2.0
        monkeypatch.setattr(kind, "forward", scaled)
    else:
        scale["by"] = 2.0
    found = explainer.explain(inputs, target=0)
    expected = Explainer(model, compile=False).explain(inputs, target=0)
    torch.testing.assert_close(found.scores, expected.scores)
    assert not torch.allclose(found.scores, before.scores, rtol=1e-3)
    # What was recorded is forgotten, and recorded anew when it recurs.
    again = explain_often(explainer, inputs, BEFORE + 2, target=0)
    torch.testing.assert_close(again.scores, expected.scores)


def test_what_users_registered_belongs_to_a_program(monkeypatch):
    model, inputs = build()
    explainer = Explainer(model)
    explain_often(explainer, inputs, BEFORE + 1, method="tiba")
    monkeypatch.setattr(whence.tracing.registration, "registered_kinds", {"gelu": "sum"})
    monkeypatch.setattr(run, "registered_kinds", {"gelu": "sum"})
    explainer.explain(inputs, method="tiba")
    assert len(explainer._compiled._programs) == 2


def test_nothing_is_recorded_where_it_is_switched_off_or_cannot_be(counted):
    model, inputs = build()
    explain_often(Explainer(model, compile=False), inputs, BEFORE + 2)
    explain_often(Explainer(model), inputs, BEFORE + 2, keep_evidence=True)
    explain_often(Explainer(model), inputs, BEFORE + 2, method="occlusion")
    shapes = [inputs[:1], inputs[:2]] * BEFORE
    explainer = Explainer(model)
    for one in shapes:
        explainer.explain(one)
    assert counted == []
    with pytest.raises(WhenceError, match="compile is True, False or 'auto', not 'always'"):
        Explainer(model, compile="always")


def test_what_cannot_be_recorded_is_explained_plainly_and_in_silence(monkeypatch):
    def fail(*args):
        raise RuntimeError("no")

    monkeypatch.setattr("whence.engine.compiled.making.Program", fail)
    model, inputs = build()
    explainer = Explainer(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = explain_often(explainer, inputs, BEFORE + 2)
    torch.testing.assert_close(found.scores, Explainer(model, compile=False).explain(inputs).scores)


def test_a_program_that_holds_much_memory_is_given_up(monkeypatch):
    held = property(lambda self: 100)
    monkeypatch.setattr("whence.engine.compiled.making.CompiledProgram.held_bytes", held)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (800, 800))
    model, inputs = build()
    explainer = Explainer(model)
    explain_often(explainer, inputs, BEFORE + 2)
    assert not explainer._compiled.has_programs
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (8000, 8000))
    explainer = Explainer(model)
    explain_often(explainer, inputs, BEFORE + 2)
    assert explainer._compiled.has_programs


def test_nothing_is_pushed_out_unasked(counted, monkeypatch):
    monkeypatch.setattr(run, "_MAX_PROGRAMS", 2)
    model, inputs = build()
    explainer = Explainer(model)
    for _ in range(BEFORE + 3):
        for method in ("gae", "rollout", "attnlrp"):
            explainer.explain(inputs, method=method)
    assert counted == ["gae", "rollout"]


def test_programs_are_checked_also_while_another_begins_anew():
    """What was forgotten for one method must not leave the program of another unchecked."""
    model, inputs = build()
    explainer = Explainer(model)
    for method in ("whence", "tiba"):
        explain_often(explainer, inputs, BEFORE + 1, method=method, target=0)
    model.register_forward_hook(
        lambda module, args, out: dataclasses.replace(out, logits=-3 * out.logits)
    )
    plain = Explainer(model, compile=False)
    for method in ("whence", "tiba", "tiba"):
        found = explainer.explain(inputs, method=method, target=0)
        expected = plain.explain(inputs, method=method, target=0)
        torch.testing.assert_close(found.logits, expected.logits)
        torch.testing.assert_close(found.scores, expected.scores)


def test_a_small_change_is_noticed():
    model, inputs = build()
    explainer = Explainer(model)
    explain_often(explainer, inputs, BEFORE + 1)
    (program,) = explainer._compiled._programs.values()
    assert program.rounding < 1e-4
    model.vit.layernorm.register_forward_hook(lambda module, args, out: out * 1.001)
    found, expected = explainer.explain(inputs), Explainer(model, compile=False).explain(inputs)
    torch.testing.assert_close(found.logits, expected.logits)
    assert not explainer._compiled.has_programs


def test_models_in_16_bits_are_not_recorded(counted):
    """Their logits round too much to show that a model has changed."""
    model, inputs = build()
    explainer = Explainer(model.bfloat16())
    explain_often(explainer, inputs.bfloat16(), BEFORE + 3)
    assert counted == ["whence"]
    assert not explainer._compiled.has_programs


def test_what_fails_when_it_is_recorded_is_explained_plainly(monkeypatch):
    def fail(*args, **kwargs):
        raise WhenceError("There is nothing to explain.")

    monkeypatch.setattr(run, "_compute", fail)
    model, inputs = build()
    explainer = Explainer(model)
    found = explain_often(explainer, inputs, BEFORE + 2)
    torch.testing.assert_close(found.scores, Explainer(model, compile=False).explain(inputs).scores)
    with pytest.raises(WhenceError, match="nothing to explain"):
        explainer.compile(inputs)


def test_who_asks_later_gets_a_program(monkeypatch):
    monkeypatch.setattr(run, "_is_fit", lambda *_: False)
    model, inputs = build()
    explainer = Explainer(model)
    explain_often(explainer, inputs, BEFORE + 2)
    assert not explainer._compiled.has_programs
    monkeypatch.setattr(run, "fuse_program", lambda *_: None)
    explainer.compile(inputs)
    (program,) = explainer._compiled._programs.values()
    assert program.is_asked
