"""What a loaded model keeps between batches."""

import pytest
import torch

from tests.saved import make_photo
from whence import WhenceError
from whence.models import load


def batch(loaded, seed=0):
    return loaded.prepare([make_photo(seed=seed), make_photo(seed=seed + 1)])


def test_what_is_compiled_is_used_for_all_batches(image_model, programs):
    plain, fast = load(image_model), load(image_model, compile=True)
    for seed in range(4):
        expected = plain.explain(batch(plain, seed), method="tiba").scores
        found = fast.explain(batch(fast, seed), method="tiba").scores
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert len(programs) == 1


def test_nothing_is_compiled_unless_asked_for(image_model, programs):
    loaded = load(image_model)
    for _ in range(3):
        loaded.explain(batch(loaded))
    assert programs == []


def test_precision_changes_scores_a_little(image_model):
    exact, coarse = load(image_model), load(image_model, device="cpu", precision="bfloat16")
    expected, found = (one.explain(batch(one), method="tiba").scores for one in (exact, coarse))
    apart = (found - expected).norm() / expected.norm()
    assert 1e-4 < apart < 0.2


@pytest.mark.parametrize(
    ("precision", "message"),
    [("float16", "'tf32' or 'bfloat16', or None"), ("tf32", "tf32 needs a GPU")],
)
def test_precisions_that_are_none(image_model, precision, message):
    with pytest.raises(WhenceError, match=message):
        load(image_model, device="cpu", precision=precision)


def test_an_explanation_keeps_photos_and_the_name_of_the_model(image_model, text_model):
    loaded = load(image_model)
    prepared = batch(loaded)
    result = loaded.explain(prepared)
    assert result.photos == prepared.photos
    assert [photo.image.size for photo in result.photos] == [(60, 40)] * 2
    assert result.model == image_model.name  # the path to it is private
    texts = load(text_model)
    assert texts.explain(texts.prepare(["a good film"])).photos is None


def test_embedded_models_say_so():
    assert load(None, "image").title == "pets (embedded)"
