"""A masked language model is asked for the masked word, unless for something else."""

import pytest
import torch

from tests.saved import save_text_model
from whence import WhenceError, explain, targets
from whence.models import load

TEXTS = ["the film is [MASK] .", "a [MASK] film"]


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    return load(save_text_model(tmp_path_factory.mktemp("masked"), "MaskedLM"))


def test_the_masked_word_is_explained(masked):
    result = explain(TEXTS[0], masked)
    expected = explain(TEXTS[0], masked, targets.token(position=4))
    assert torch.equal(result.scores, expected.scores)
    assert result.target_names == expected.target_names
    inputs = masked.prepare([TEXTS[0]]).inputs
    best = int(masked.model(**inputs).logits[0, 4].argmax())
    assert result.target_names == [masked.tokenizer.decode([best])]


def test_each_text_has_its_mask(masked):
    together = explain(TEXTS, masked, "good", against="bad")
    assert together.target_names == ["good rather than bad"] * 2
    for sample, text in enumerate(TEXTS):
        alone = explain(text, masked, "good", against="bad").scores[0]
        assert torch.allclose(together.scores[sample, : len(alone)], alone, rtol=1e-4, atol=1e-6)


def test_other_requests_stay_as_they_are(masked):
    asked = explain(TEXTS[0], masked, targets.token(position=1, token="a"))
    assert asked.target_names == ["a"]
    for text in ("the film", "[MASK] film [MASK]"):
        with pytest.raises(
            WhenceError, match=r"Say which of them to explain: target=targets.token"
        ):
            explain(text, masked)
