"""Models in 16 bits: scores rank as in float32, or there is a warning."""

import warnings

import pytest
import torch
from scipy.stats import spearmanr

from whence import Explainer
from whence.models import load

SENTENCES = ("a gripping and beautifully acted film", "the plot is thin and the jokes fall flat")


@pytest.fixture(scope="module")
def sentiment():
    loaded = load(kind="text", device="cpu")
    return loaded.model.float(), [dict(loaded.prepare([one]).inputs) for one in SENTENCES]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout", "input_x_gradient"])
def test_scores_rank_as_in_float32(sentiment, method, dtype):
    model, inputs = sentiment
    expected = [Explainer(model).explain(one, method=method).scores[0] for one in inputs]
    try:
        explainer = Explainer(model.to(dtype))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Scores of")
            found = [explainer.explain(one, method=method).scores[0].float() for one in inputs]
    finally:
        model.float()
    figures = [spearmanr(*pair).statistic for pair in zip(found, expected, strict=True)]
    assert sum(figures) / len(figures) >= 0.98  # 0.99 over more sentences; ties are few words


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_methods_that_do_not_are_named(sentiment, dtype):
    model, inputs = sentiment
    kind = str(dtype).removeprefix("torch.")
    try:
        with pytest.warns(UserWarning, match=f"'occlusion' in {kind} may rank") as caught:
            Explainer(model.to(dtype)).explain(inputs[0], method="occlusion")
    finally:
        model.float()
    assert any("float32 copy" in str(one.message) for one in caught)
