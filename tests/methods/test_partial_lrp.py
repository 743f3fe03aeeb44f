"""Relevance at one attention, against the authors' own results."""

import pytest
import torch

from tests.methods.authors_results import is_close, read_authors_results
from tests.paths import PATHS, explain_on
from tests.test_golden import list_targets, load_small_model
from tests.zoo import CASES, HandWrittenViT, build_model, make_images
from whence import Explainer, WhenceError

ENTRIES = {"reference": "partial_lrp_last_layer", "authors_lrp": "orig_lrp_last_layer"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["vit_a", "vit_b", "bert_a", "bert_b"])
@pytest.mark.parametrize("rules", ["reference", "authors_lrp"])
def test_the_last_attention_equals_the_authors_results(name, rules, path):
    expected = read_authors_results(name, ENTRIES[rules])
    if not expected:
        pytest.skip("the authors have no such result")
    model, inputs = load_small_model(name)
    request = {"classes": list_targets(name), "method": "partial_lrp", "rules": rules}
    result = explain_on(path, model, inputs, **request)
    for i, column, tokens in expected:
        ours = result.scores[i, column]
        if tokens.dim() == 0:  # of images, only the first patch was kept
            assert is_close(ours[0], tokens, 1e-6)
        else:
            assert is_close(ours[1:], tokens[1:], 1e-6)


def test_average_pooling():
    case = CASES["timm-vit-average-fused"]
    model = build_model(case).double()
    result = Explainer(model).explain(
        case.inputs().double(), method="partial_lrp", layer=1, keep_evidence=True
    )
    map_ = result.evidence.relevance[1].clamp(min=0).mean(1)
    assert torch.allclose(result.scores, map_.mean(1), rtol=1e-10)


def test_layers_from_the_start_and_from_the_end():
    model = HandWrittenViT().double()
    kept = Explainer(model).explain(
        make_images(32, 32).double(), method="partial_lrp", layer=2, keep_evidence=True
    )
    alone = Explainer(model).explain(make_images(32, 32).double(), method="partial_lrp", layer=-1)
    assert torch.equal(kept.scores, alone.scores)


@pytest.mark.parametrize("layer", [3, -4])
def test_a_layer_that_does_not_exist(layer):
    with pytest.raises(WhenceError, match=r"layer=-?\d does not exist: the model has 3"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="partial_lrp", layer=layer)
