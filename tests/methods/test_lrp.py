"""Relevance at the input and at the last attention, against the authors' own results."""

import numpy as np
import pytest
import torch

from tests.test_golden import TAGS, golden, small_model, targets
from tests.zoo import CASES, HandWrittenViT, built, images, texts
from whence import Explainer, WhenceError

FULL = {"lrp/reference": "full_lrp", "lrp/authors_lrp": "orig_lrp_full"}
LAST = {
    "partial_lrp/reference": "partial_lrp_last_layer",
    "partial_lrp/authors_lrp": "orig_lrp_last_layer",
}


def theirs(name: str, entry: str) -> list[tuple[int, int, torch.Tensor]]:
    """The authors' results of every sample and class."""
    data = golden(name)
    return [
        (i, column, torch.as_tensor(np.asarray(data[f"{i}/{tag}/{entry}"], dtype=np.float64)))
        for i in range(len(data["logits"]))
        for column, tag in enumerate(TAGS)
        if f"{i}/{tag}/{entry}" in data
    ]


def close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    assert ours.shape == expected.shape
    return bool((ours - expected).abs().max() <= tolerance * expected.abs().max())


@pytest.mark.parametrize("name", ["vit_a", "vit_b"])
@pytest.mark.parametrize("rules", ["reference", "authors_lrp"])
def test_pixels_are_the_authors(name, rules):
    model, inputs = small_model(name)
    result = Explainer(model).explain(
        inputs, classes=targets(name), method="lrp", rules=rules, keep_evidence=True
    )
    expected = theirs(name, FULL[f"lrp/{rules}"] + "_pixels")
    assert len(expected) == 2 * len(result.scores)
    for i, column, pixels in expected:
        ours = result.evidence.input_relevance[i, column].sum(0)
        assert close(ours, pixels, 1e-6)
        side = pixels.shape[0] // result.grid[0]
        patches = pixels.unfold(0, side, side).unfold(1, side, side).sum((-1, -2)).flatten()
        assert close(result.scores[i, column], patches, 1e-6)


@pytest.mark.parametrize("name", ["bert_a", "bert_b"])
def test_tokens_are_the_authors(name):
    model, inputs = small_model(name)
    result = Explainer(model).explain(
        inputs, classes=targets(name), method="lrp", rules="reference"
    )
    expected = theirs(name, "full_lrp_tokens")
    assert len(expected) == 2 * len(result.scores)
    for i, column, tokens in expected:
        # They set the class token to 0.
        assert close(result.scores[i, column, 1:], tokens[1:], 1e-5)


@pytest.mark.parametrize("name", ["vit_a", "vit_b", "bert_a", "bert_b"])
@pytest.mark.parametrize("rules", ["reference", "authors_lrp"])
def test_the_last_attention_is_the_authors(name, rules):
    expected = theirs(name, LAST[f"partial_lrp/{rules}"])
    if not expected:
        pytest.skip("the authors have no such result")
    model, inputs = small_model(name)
    result = Explainer(model).explain(
        inputs, classes=targets(name), method="partial_lrp", rules=rules
    )
    for i, column, tokens in expected:
        ours = result.scores[i, column]
        if tokens.dim() == 0:  # of images, only the first patch was kept
            assert close(ours[0], tokens, 1e-6)
        else:
            assert close(ours[1:], tokens[1:], 1e-6)


def test_pooled_by_the_formula():
    case = CASES["timm-vit-average-fused"]
    model = built(case).double()
    result = Explainer(model).explain(
        case.inputs().double(), method="partial_lrp", layer=1, keep_evidence=True
    )
    map_ = result.evidence.relevance[1].clamp(min=0).mean(1)
    assert torch.allclose(result.scores, map_.mean(1), rtol=1e-10)


def test_nothing_is_read_below_the_layer():
    model = HandWrittenViT().double()
    kept = Explainer(model).explain(
        images(32, 32).double(), method="partial_lrp", layer=2, keep_evidence=True
    )
    alone = Explainer(model).explain(images(32, 32).double(), method="partial_lrp", layer=-1)
    assert torch.equal(kept.scores, alone.scores)


@pytest.mark.parametrize("layer", [3, -4])
def test_a_layer_that_does_not_exist(layer):
    with pytest.raises(WhenceError, match=r"layer=-?\d does not exist: the model has 3"):
        Explainer(HandWrittenViT()).explain(images(32, 32), method="partial_lrp", layer=layer)


def test_stable_relevance_is_conserved_down_to_the_words():
    case = CASES["Bert-sdpa"]
    inputs = texts()
    result = Explainer(built(case).double()).explain(inputs, method="lrp", classes=[0, 1, 2])
    assert torch.allclose(result.scores.sum(-1), torch.ones(3, 3, dtype=torch.float64), rtol=1e-9)
    assert (result.scores >= 0).all()
