"""Relevance at the input, against the authors' own results."""

import pytest
import torch

from tests.methods.authors_results import is_close, read_authors_results
from tests.paths import PATHS, explain_on
from tests.test_golden import list_targets, load_small_model
from tests.zoo import CASES, build_model, make_texts
from whence import Explainer

ENTRIES = {"reference": "full_lrp_pixels", "authors_lrp": "orig_lrp_full_pixels"}


@pytest.mark.parametrize("name", ["vit_a", "vit_b"])
@pytest.mark.parametrize("rules", ["reference", "authors_lrp"])
def test_pixels_equal_the_authors_results(name, rules):
    model, inputs = load_small_model(name)
    result = Explainer(model).explain(
        inputs, classes=list_targets(name), method="lrp", rules=rules, keep_evidence=True
    )
    expected = read_authors_results(name, ENTRIES[rules])
    assert len(expected) == 2 * len(result.scores)
    for i, column, pixels in expected:
        ours = result.evidence.input_relevance[0][i, column].sum(0)
        assert is_close(ours, pixels, 1e-6)
        side = pixels.shape[0] // result.grid[0]
        patches = pixels.unfold(0, side, side).unfold(1, side, side).sum((-1, -2)).flatten()
        assert is_close(result.scores[i, column], patches, 1e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["bert_a", "bert_b"])
def test_tokens_equal_the_authors_results(name, path):
    model, inputs = load_small_model(name)
    request = {"classes": list_targets(name), "method": "lrp", "rules": "reference"}
    result = explain_on(path, model, inputs, **request)
    expected = read_authors_results(name, "full_lrp_tokens")
    assert len(expected) == 2 * len(result.scores)
    for i, column, tokens in expected:
        # They set the class token to 0.
        assert is_close(result.scores[i, column, 1:], tokens[1:], 1e-5)


def test_stable_relevance_is_conserved_down_to_the_words():
    case = CASES["Bert-sdpa"]
    inputs = make_texts()
    result = Explainer(build_model(case).double()).explain(inputs, method="lrp", classes=[0, 1, 2])
    assert torch.allclose(result.scores.sum(-1), torch.ones(3, 3, dtype=torch.float64), rtol=1e-9)
    assert (result.scores >= 0).all()
