"""`search` with candidates="methods"."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from tests.methods.search_formula import build_small_bert, build_small_vit, rate_area
from tests.zoo import CASES, build_model, make_images, make_texts
from whence import Explainer, methods
from whence.methods import registry


@pytest.fixture
def _more_methods(monkeypatch):
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))

    @dataclass(frozen=True)
    class Columns(methods.Method):
        needs: ClassVar = ("attention",)
        layer: int = 0

        def __call__(self, evidence):
            return evidence.attention[self.layer].mean(1).sum(1).expand_as(evidence.pooling)

    @dataclass(frozen=True)
    class Occludes(methods.Method):
        """Needs further forward passes and hidden states."""

        needs: ClassVar = ("hidden", "forwards")

        def __call__(self, evidence):
            forwards = evidence.forwards
            before = forwards(forwards.inputs, torch.arange(evidence.batch))
            assert torch.allclose(before, evidence.logits)
            return evidence.hidden[-1].norm(dim=-1).expand_as(evidence.pooling)

    methods.register("columns")(Columns)
    methods.register("columns_too")(Columns)
    methods.register("occludes")(Occludes)


def rate_patches(model, pixels: Tensor, target: int, scores: Tensor) -> float:
    """The area of one image's scores of patches."""

    def probability(deleted):
        image = pixels.clone()
        for patch in deleted:
            row, column = 8 * (patch // 4), 8 * (patch % 4)
            image[:, row : row + 8, column : column + 8] = 0
        with torch.no_grad():
            return model(image[None]).softmax(1)[0, target].item()

    return rate_area(scores, list(range(16)), probability)


@pytest.mark.usefixtures("_more_methods")
@pytest.mark.parametrize("how", [{}, {"rules": "reference"}, {"gradients": "balanced"}])
def test_the_most_faithful_method_wins(how):
    model, pixels = build_small_vit(), make_images(32, 32).double()
    explainer, names = Explainer(model), ["columns", "tiba", "occludes"]
    result = explainer.explain(
        pixels, classes=[1, 4], method="search", candidates="methods", methods=names, **how
    )
    alone = {}
    for name in names:
        options = {k: v for k, v in how.items() if k == "rules" or name == "tiba"}
        alone[name] = explainer.explain(pixels, classes=[1, 4], method=name, **options).scores
    winners = set()
    for n, (c, target) in itertools.product(range(3), enumerate((1, 4))):
        areas = {name: rate_patches(model, pixels[n], target, alone[name][n, c]) for name in names}
        best = max(areas, key=areas.get)
        found = result.details[n][c]
        assert found["setting"] == {"method": best}
        assert found["faithfulness"] == pytest.approx(areas[best], rel=1e-8)
        assert torch.allclose(result.scores[n, c], alone[best][n, c], rtol=1e-8)
        winners.add(best)
    assert "tiba" in winners
    assert len(winners) > 1


@pytest.mark.usefixtures("_more_methods")
@pytest.mark.parametrize("names", [("columns", "columns_too"), ("columns_too", "columns")])
def test_of_equal_methods_the_first_wins(names):
    options = {"method": "search", "candidates": "methods", "methods": names}
    explainer, pixels = Explainer(build_small_vit()), make_images(32, 32).double()
    for found in explainer.explain(pixels, **options).details:
        assert found["setting"] == {"method": names[0]}
        assert (found["rated"], found["candidates"]) == (2, 2)
    for found in explainer.explain(pixels, budget=1, **options).details:
        assert (found["rated"], found["candidates"]) == (1, 2)


def test_arbitration_on_padded_texts():
    model, inputs = build_small_bert(), make_texts()
    result = Explainer(model).explain(
        inputs, method="search", candidates="methods", methods=["tiba"], score="ranked"
    )
    assert torch.allclose(result.scores, Explainer(model).explain(inputs, method="tiba").scores)


@pytest.mark.parametrize(("names", "rules"), [(("gae", "tiba"), "reference"), (("gae",), None)])
def test_the_rules_of_candidates_are_in_the_settings(names, rules):
    case = CASES["ViTForImageClassification-sdpa"]
    options = {"method": "search", "candidates": "methods", "methods": names}
    result = Explainer(build_model(case)).explain(case.inputs(), rules="reference", **options)
    assert result.settings.get("rules") == rules
