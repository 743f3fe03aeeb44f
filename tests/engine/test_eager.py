"""The eager run: shortcuts that fail are not taken, classes go in groups, scores are finite."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from tests.engine.helpers import make_request
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, WhenceError, methods, rules
from whence.engine import bounds
from whence.engine.eager import record_request, run_eagerly
from whence.errors import TooLargeError
from whence.methods import registry
from whence.tracing.ops.guard import Guard

INFINITE = float("inf")


def test_a_result_says_how_much_a_sample_takes():
    request = make_request(target=[3, 1])
    trace = record_request(request, Guard(), INFINITE, INFINITE)
    result = run_eagerly(request, INFINITE, INFINITE)
    assert result.sample_bytes == trace.kept_bytes / 2
    assert result.classes.tolist() == [[3], [1]]
    assert torch.equal(result.logits, trace.logits)
    assert result.scores.shape == (2, 1, 5)
    with pytest.raises(TooLargeError):
        run_eagerly(request, trace.kept_bytes - 1, INFINITE)


@pytest.mark.parametrize(
    ("method", "width", "blocks"),
    [
        ("gae", 10, 3 * 2**30),
        ("gae", 10**5, 0.85 * 4 * 10**10),
        ("tiba", 10**5, 0.75 * 4 * 10**10),
    ],
)
def test_blocks_of_a_large_model_may_keep_more(monkeypatch, method, width, blocks):
    monkeypatch.setattr(bounds, "bound_forwards_bytes", lambda *_: 2.0**40)
    request = make_request(method=method)
    request.subject.model.register_parameter(
        "large", torch.nn.Parameter(torch.empty(width, width, device="meta"))
    )
    others = sum(one.nbytes for one in request.subject.model.parameters()) - 4 * width**2
    _, found = bounds.bound_segments(replace(request, memory=None))
    assert found == pytest.approx(blocks, abs=others)
    _, named = bounds.bound_segments(replace(request, memory=8.0))
    assert named == 2.0**40 * 3 / 8  # who names a bound means it


# Shortcuts ---------------------------------------------------------------------------------------


def count_passes(model) -> list:
    passes = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    return passes


def test_a_shortcut_that_fails_unseen_is_not_taken_in_the_end(monkeypatch):
    case = CASES["timm-vit-fused"]
    expected = Explainer(build_model(case)).explain(case.inputs(), method="tiba").scores
    exact = []

    def defer(self, failure):
        exact.append(self.exact)
        return self.defer_shortcut(torch.ones_like(failure))  # as on a GPU, where nobody looks

    monkeypatch.setattr(Guard, "shortcut_fails", defer)
    monkeypatch.setattr("whence.rules.z_plus._CANCELLED", 1e9)
    model = build_model(case)
    passes = count_passes(model)
    scores = Explainer(model).explain(case.inputs(), method="tiba").scores
    assert len(passes) == 2
    assert exact
    assert not any(exact)
    assert torch.allclose(scores, expected, rtol=1e-4)


def test_a_shortcut_that_ends_in_nan_is_not_taken_in_the_end():
    def coarse(op, relevance):
        op.guard.defer_shortcut(torch.tensor(True))
        return exact(op, relevance) if op.guard.exact else torch.full_like(op.x, torch.nan)

    exact = rules.get("stable").rules["linear"]
    case = CASES["timm-vit-fused"]
    by_coarse = {"method": "tiba", "rules": rules.get("stable").extend("coarse", linear=coarse)}
    found = Explainer(build_model(case)).explain(case.inputs(), **by_coarse)
    plain = Explainer(build_model(case)).explain(case.inputs(), method="tiba")
    assert torch.allclose(found.scores, plain.scores, rtol=1e-4, atol=1e-9)


def test_without_a_failure_one_pass_is_enough():
    case = CASES["timm-vit-fused"]
    model = build_model(case)
    passes = count_passes(model)
    Explainer(model).explain(case.inputs(), method="tiba")
    assert len(passes) == 1


# Scores ------------------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch):
    """A method of images only, whose scores are not finite."""
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))

    @methods.register("broken")
    @dataclass(frozen=True)
    class Broken(methods.Method):
        needs: ClassVar = ()
        inputs: ClassVar = ("image",)

        def __call__(self, evidence):
            return evidence.pooling / 0


@pytest.mark.usefixtures("broken")
def test_scores_that_are_not_finite_are_an_error():
    with pytest.raises(WhenceError, match=r"'broken' computed NaN .*float32 holds.*double\(\)"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="broken")


@pytest.mark.usefixtures("broken")
def test_a_method_of_images_refuses_texts():
    with pytest.raises(
        WhenceError, match="'broken' explains images only, and this input is a text"
    ):
        Explainer(build_model(CASES["Bert-sdpa"])).explain(make_texts(), method="broken")


@pytest.mark.parametrize("keep", [False, True])
def test_many_classes_in_groups_are_as_good_as_all_at_once(monkeypatch, keep):
    model, pixels = HandWrittenViT(), make_images(32, 32)
    request = {"classes": 5, "keep_evidence": keep, "method": "tiba"}
    together = Explainer(model).explain(pixels, **request)
    monkeypatch.setattr("whence.engine.eager._MAPS_AT_ONCE", 6)
    grouped = Explainer(model).explain(pixels, **request)
    assert torch.allclose(grouped.scores, together.scores)
    if keep:
        assert grouped.evidence.relevance[0].shape == (3, 5, 4, 17, 17)
        assert torch.allclose(grouped.evidence.relevance[0], together.evidence.relevance[0])


def test_padding_has_no_score():
    case = CASES["Bert-sdpa"]
    result = run_eagerly(make_request(make_texts(), build_model(case)), INFINITE, INFINITE)
    assert not result.scores[:, 0][make_texts()["attention_mask"] == 0].any()
    assert result.scores[:, 0][make_texts()["attention_mask"] == 1].all()
