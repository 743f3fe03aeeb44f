"""Batches that are explained in parts."""

import pytest
import torch

from tests.zoo import CASES, build_model
from whence import Explainer
from whence.engine.batching import split_evenly
from whence.engine.compiled import cache as replay


@pytest.mark.parametrize(
    ("samples", "most", "size"),
    [(64, 28, 22), (64, 64, 64), (64, 100, 64), (5, 0, 1), (7, 3, 3), (8, 5, 4), (1, 1, 1)],
)
def test_parts_are_few_and_nearly_equal(samples, most, size):
    assert split_evenly(samples, most) == size


@pytest.fixture
def shapes(monkeypatch):
    """The number of samples in each run, of those that would be compiled too."""
    seen = []

    def ready(compute, inputs, answers, expected):
        return compute

    run = replay.Replays.run

    def watched(self, what, inputs, compute):
        seen.append(len(inputs["argument 0"]))
        return run(self, what, inputs, compute)

    monkeypatch.setattr(replay, "_ready", ready)
    monkeypatch.setattr(replay.Replays, "run", watched)
    return seen


@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "Bert-sdpa"])
def test_compiled_parts_have_one_shape(name, shapes):
    case = CASES[name]
    model, given = build_model(case).double(), case.inputs()
    inputs = {}
    for key, value in given.items():
        value = value.double() if value.is_floating_point() else value
        inputs[key] = torch.cat([value, value.flip(0), value])[:7]
    plain = Explainer(model)
    whole = plain.explain(inputs, method="tiba", target=1)
    (sample,) = plain._bytes_of_sample.values()
    fast = Explainer(model, compile=True)
    for _ in range(3):
        shapes.clear()
        found = fast.explain(inputs, method="tiba", target=1, memory=3.5 * sample / 2**30)
        assert torch.allclose(found.scores, whole.scores, rtol=1e-10)
        assert torch.equal(found.logits.argmax(1), whole.logits.argmax(1))
        if whole.tokens is not None:
            assert found.tokens.strings == whole.tokens.strings
    assert shapes == [3, 3, 3]


def test_how_many_fit_is_known_from_the_first():
    case = CASES["ViTForImageClassification-sdpa"]
    explainer, pixels = Explainer(build_model(case)), case.inputs()["pixel_values"]
    explainer.explain({"pixel_values": pixels[:1]}, method="tiba")
    (one,) = explainer._bytes_of_sample.values()
    explainer = Explainer(build_model(case))
    explainer.explain({"pixel_values": pixels}, method="tiba")
    (several,) = explainer._bytes_of_sample.values()
    assert one == several
