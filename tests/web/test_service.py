"""Predictions and explanations of the page, without the page."""

import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image

from tests.web.client import make_png
from whence import Explainer, WhenceError, methods
from whence._util.defaults import METHOD
from whence.models import load
from whence.web.method_cards import list_methods
from whence.web.service import SHOWN_SIDE, Choice, ExplanationService
from whence.web.validation import check_text, decode_photo


def test_the_default_is_that_of_the_library():
    expected = inspect.signature(Explainer.explain).parameters["method"].default
    assert expected == METHOD
    assert METHOD in methods.available()


def test_methods_suit_the_input():
    assert set(list_methods("image")) | set(list_methods("text")) == {
        *methods.available("image"),
        *methods.available("text"),
    }
    assert "vit_cx" not in list_methods("text")


def test_folders_are_offered_by_name_and_other_kinds_are_embedded(image_model, embedded):
    service = ExplanationService.load([str(image_model)])
    assert service.list_models("image") == [image_model.name]
    assert service.list_models("text") == ["sentiment (embedded)"]


def test_two_models_of_one_name(image_model):
    with pytest.raises(WhenceError, match="Two models"):
        ExplanationService.load([str(image_model), f"{image_model}/../{image_model.name}"])


def test_probabilities_are_those_of_a_plain_forward(service, image_model):
    prediction = service.predict("photos", decode_photo(make_png()))
    loaded = load(image_model)
    pixels = loaded.prepare([Image.new("RGB", (48, 32), "teal")]).inputs
    expected = loaded.model(pixels).logits[0].detach().double().softmax(0)
    assert [c.index for c in prediction.classes] == expected.argsort(descending=True).tolist()
    for one in prediction.classes:
        assert one.probability == pytest.approx(float(expected[one.index]), rel=1e-5)
        assert one.name == loaded.class_names[one.index]


def test_a_cached_explanation_is_not_computed_again(service, monkeypatch):
    def explain():
        prediction = service.predict("texts", check_text("a film , not very good"))
        return service.explain(prediction, Choice((0,)), ["gae"])[0].explanation

    first = explain()
    monkeypatch.setattr(Explainer, "explain", None)
    assert explain() is first


def test_cached_photos_are_small_and_uploads_unchanged(service):
    what = decode_photo(make_png(1600, 800))
    prediction = service.predict("photos", what)
    assert max(prediction.photo.crop.size) == SHOWN_SIDE
    assert what.image.size == (1600, 800)


def test_models_without_a_tab_are_refused(text_model, tmp_path):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    AutoTokenizer.from_pretrained(text_model).save_pretrained(tmp_path)
    AutoModelForMaskedLM.from_pretrained(text_model).save_pretrained(tmp_path)
    with pytest.raises(WhenceError, match="output for each token"):
        ExplanationService.load([str(tmp_path)])


@pytest.mark.parametrize(("model", "given"), [("photos", make_png()), ("texts", "a good film")])
def test_two_threads_explain_by_one_model_at_once(service, model, given):
    """As the two lanes of the page do."""
    pytest.importorskip("captum", reason="whence[methods] is not installed")
    page_input = check_text(given) if isinstance(given, str) else decode_photo(given)
    names = ["occlusion", "rise", METHOD, "tiba", "integrated_gradients", "value_zeroing"]

    def explain(name):
        own = ExplanationService(service.models)  # with a cache of its own
        prediction = own.predict(model, page_input)
        return own.explain(prediction, Choice((0, 1)), [name])[0].explanation.scores

    expected = {name: explain(name) for name in names}
    with ThreadPoolExecutor(2) as threads:
        asked = names + names[::-1] + names[1:]
        found = list(zip(asked, threads.map(explain, asked), strict=True))
    assert [name for name, scores in found if not torch.equal(scores, expected[name])] == []
