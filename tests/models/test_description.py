"""What is said of a model is what its explanations show."""

import dataclasses

import pytest
import torch
from torch import nn
from transformers import SwinConfig, SwinForImageClassification

from whence import Explainer, WhenceError, methods
from whence.methods import registry
from whence.models import load
from whence.models.description import describe_model, list_methods


@pytest.fixture
def photo_model(image_model):
    return load(image_model)


@pytest.mark.slow
def test_every_method_said_to_run_runs(photo_model):
    described = describe_model(photo_model)
    inputs = torch.randn(1, 3, 32, 32)
    assert described.methods == list_methods("image") == methods.available("image")
    few = {"integrated_gradients": {"steps": 2}, "smoothgrad": {"samples": 2}, "rise": {"masks": 4}}
    few |= {"search": {"budget": 2}}
    for method in described.methods:
        options = few.get(method, {})
        result = photo_model.explainer.explain(inputs, 0, method=method, **options)
        assert result.scores.shape == (1, described.units)
    assert described.units == 16
    assert described.parameters == sum(x.numel() for x in photo_model.model.parameters())


def test_a_network_without_attention(photo_model):
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    advanced = []
    network = dataclasses.replace(photo_model, model=nn.Sequential(*layers))
    described = describe_model(network, advanced.append)
    assert described.attention == []
    assert described.methods == sorted([*registry.list_at_input("image"), "random"])
    ((problem, refused),) = described.refused.items()
    assert "no attention" in problem
    assert sorted([*described.methods, *refused]) == methods.available("image")
    assert sum(advanced) == len(methods.available("image"))


def test_a_method_that_fails_does_not_speak_for_those_that_read_less(photo_model, monkeypatch):
    explain = Explainer.explain
    failing = ["alti", "attcat", "attention_norm", "flashtrace", "fullgrad_plus"]

    def fail(self, *arguments, **options):
        if options["method"] in failing:
            raise WhenceError("Blocks cannot be found.")
        return explain(self, *arguments, **options)

    monkeypatch.setattr(Explainer, "explain", fail)
    described = describe_model(photo_model)
    assert {"whence", "rollout", "tiba"} <= set(described.methods)
    refused = sorted(
        [*failing, "decompx", "legrad", "value_zeroing"]
    )  # of many passes, so not tried
    assert described.refused == {"Blocks cannot be found.": refused}


def test_a_model_that_cannot_run(photo_model):
    broken = dataclasses.replace(photo_model, model=nn.Linear(5, 3))
    with pytest.raises(WhenceError, match="The model failed: RuntimeError"):
        describe_model(broken)


def test_windows_are_refused_by_methods_of_one_sequence(photo_model):
    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[2, 1], num_heads=[1, 2], window_size=2
    )
    swin = dataclasses.replace(photo_model, model=SwinForImageClassification(config).eval())
    described = describe_model(swin)
    assert {"whence", "tiba", "gae", "rollout", "value_zeroing"} <= set(described.methods)
    for method in ("attention_flow", "fullgrad_plus", "attention_gradcam"):
        assert method not in described.methods
        with pytest.raises(WhenceError, match="within one sequence"):
            swin.explainer.explain(torch.randn(1, 3, 32, 32), 0, method=method)
