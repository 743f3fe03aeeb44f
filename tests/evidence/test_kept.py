"""Evidence that is returned with an explanation."""

import pytest
import torch

from tests.layouts import make_layout
from tests.zoo import CASES, HandWrittenViT, build_model, make_images
from whence import Explainer, rules
from whence.evidence import Evidence
from whence.evidence.kept import keep_evidence
from whence.targets import ClassScalars
from whence.tracing import record

STABLE = rules.get("stable")


def make_evidence(trace, classes: list[int], *needs: str) -> Evidence:
    rows = torch.tensor([classes] * trace.batch)
    return Evidence(trace, ClassScalars(rows), make_layout((4, 4), 1, 17, (32, 32)), needs, STABLE)


@pytest.fixture(scope="module")
def trace():
    return record(HandWrittenViT().double(), (make_images(32, 32).double(),), {}, 0)


KINDS = ("attention", "gradient", "relevance", "inputs", "input_gradient", "hidden_gradient")


def test_groups_of_classes_become_one(trace):
    whole = make_evidence(trace, [4, 0, 3], *KINDS)
    groups = [make_evidence(trace, classes, *KINDS) for classes in ([4, 0], [3])]
    kept = keep_evidence(groups, one_target=False)
    assert torch.equal(kept.pooling, whole.pooling.movedim(0, 1))
    assert torch.equal(kept.inputs[0], whole.inputs[0])
    assert torch.allclose(kept.input_gradient[0], whole.input_gradient[0].movedim(0, 1))
    for a, b in zip(kept.attention, whole.attention, strict=True):
        assert torch.equal(a, b)
    for kind in ("gradient", "relevance", "hidden_gradient"):
        for a, b in zip(getattr(kept, kind), getattr(whole, kind), strict=True):
            assert a.shape[:2] == (3, 3)
            assert torch.allclose(a, b.movedim(0, 1), rtol=1e-9, atol=1e-12)


def test_one_target_has_no_dimension_of_classes(trace):
    evidence = make_evidence(trace, [1], *KINDS)
    kept = keep_evidence([evidence], one_target=True)
    assert torch.equal(kept.gradient[0], evidence.gradient[0][0])
    assert torch.equal(kept.input_gradient[0], evidence.input_gradient[0][0])
    assert torch.equal(kept.pooling, evidence.pooling[0])


def test_what_was_not_declared_is_empty_but_for_plain_gradients(trace):
    kept = keep_evidence([make_evidence(trace, [1], "attention")], one_target=True)
    assert (kept.relevance, kept.hidden, kept.inputs) == ([], [], [])
    plain = make_evidence(trace, [1], "gradient").gradient
    assert all(torch.equal(a, b[0]) for a, b in zip(kept.gradient, plain, strict=True))


@pytest.mark.parametrize("method", ["whence", "tiba", "input_x_gradient"])
def test_maps_are_kept_of_every_method(method):
    case = CASES["Bert-sdpa"]
    result = Explainer(build_model(case)).explain(case.inputs(), method=method, keep_evidence=True)
    for kind in ("attention", "gradient", "relevance"):
        assert [value.shape for value in getattr(result.evidence, kind)] == [(3, 4, 10, 10)] * 3
    assert result.evidence.pooling.argmax(1).tolist() == [0, 0, 0]
    assert Explainer(build_model(case)).explain(case.inputs(), method=method).evidence is None


def test_kept_evidence_does_not_depend_on_what_surrounds_the_call():
    """Evidence that the method did not read is computed in the precision of the weights, too."""
    explainer, pixels = Explainer(HandWrittenViT()), make_images(32, 32)
    plain = explainer.explain(pixels, method="gradient", keep_evidence=True).evidence
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = explainer.explain(pixels, method="gradient", keep_evidence=True).evidence
    for kind in ("attention", "gradient", "relevance"):
        for a, b in zip(getattr(inside, kind), getattr(plain, kind), strict=True):
            assert torch.equal(a, b)
