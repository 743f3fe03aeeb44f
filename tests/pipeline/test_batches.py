"""Batches of inputs of one model: what goes together, and what is compiled."""

import dataclasses

import pytest
import torch

from tests.saved import make_photo
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.models import LoadedModel
from whence.pipeline import BatchExplainer, ExplainSettings


class Photo:
    def __init__(self, seed: int, error: Exception | None = None) -> None:
        self.seed = seed
        self.error = error

    def read(self):
        if self.error is not None:
            raise self.error
        return make_photo(seed=self.seed)


@pytest.fixture
def calls(monkeypatch) -> list:
    """Whether each batch was to be compiled, and how many photos it had; nothing is compiled."""
    known: list = []
    explain = LoadedModel.explain

    def note(self, prepared, **request):
        known.append((self.compile, len(prepared)))
        return explain(dataclasses.replace(self, compile=False), prepared, **request)

    monkeypatch.setattr(LoadedModel, "explain", note)
    return known


def make_settings(**options) -> ExplainSettings:
    how = {"batch": 2, **options}
    return ExplainSettings((MethodSpecification("rollout", "rollout"),), **how)


def test_short_batches_use_what_was_compiled_for_full_ones(vit, calls):
    alone = [next(BatchExplainer(make_settings(), vit).explain([Photo(n)])) for n in range(5)]
    compiled = dataclasses.replace(vit, compile=True)
    explainer = BatchExplainer(make_settings(compile=True, batch=3), compiled)
    calls.clear()
    list(explainer.explain([Photo(0)]))
    assert calls == [(False, 1)]  # one photo is not worth a program
    calls.clear()
    found = {one.index: one for one in explainer.explain([Photo(n) for n in range(5)])}
    assert calls == [(True, 3), (True, 3)]  # the last two photos, of which one comes twice
    for number, one in enumerate(alone):
        scores = found[number].explanations["rollout"].scores
        assert scores.shape == one.explanations["rollout"].scores.shape
        assert torch.allclose(scores, one.explanations["rollout"].scores, atol=1e-6)
        assert found[number].explanations["rollout"].photos[0].image.size == (60, 40)


@pytest.mark.parametrize("threads", [1, 2])
def test_inputs_are_taken_one_batch_ahead_and_failures_come_with_their_place(vit, threads):
    taken: list[int] = []

    def iterate():
        for number in range(7):
            taken.append(number)
            yield Photo(number, WhenceError("It is damaged.") if number == 3 else None)

    explainer = BatchExplainer(make_settings(), vit, threads, is_proven=True)
    indices = []
    for one in explainer.explain(iterate()):
        indices.append(one.index)
        assert (one.error == "It is damaged.") == (one.index == 3)
        assert len(taken) <= one.index // 2 * 2 + 2 * threads
    assert sorted(indices) == list(range(7))


def test_what_fails_first_ends_the_run_unless_the_settings_are_proven(vit, monkeypatch):
    def fail(*_args, **_request):
        raise RuntimeError("no luck")

    monkeypatch.setattr(LoadedModel, "explain", fail)
    with pytest.raises(WhenceError, match="Model or method failed: RuntimeError: no luck"):
        list(BatchExplainer(make_settings(), vit).explain([Photo(0), Photo(1)]))
    proven = BatchExplainer(make_settings(), vit, is_proven=True)
    errors = [one.error for one in proven.explain([Photo(0), Photo(1)])]
    assert errors == ["Model or method failed: RuntimeError: no luck."] * 2
