"""The work behind the page, without the page."""

import inspect

import pytest
import torch
from PIL import Image

from tests.saved import photo
from tests.web.client import png
from whence import Explainer, WhenceError, methods
from whence._util.defaults import METHOD
from whence.models import load
from whence.web.desk import SHOWN_SIDE, Desk, methods_for
from whence.web.heads import head_colors, read_heads
from whence.web.inputs import photo_from, sentence_from


def test_the_default_is_that_of_the_library():
    expected = inspect.signature(Explainer.explain).parameters["method"].default
    assert expected == METHOD
    assert METHOD in methods.available()


def test_methods_suit_the_input():
    assert set(methods_for("image")) | set(methods_for("text")) == set(methods.available())
    assert "vit_cx" not in methods_for("text")


def test_folders_are_offered_by_name_and_other_kinds_are_embedded(image_model, embedded):
    desk = Desk.with_models([str(image_model)])
    assert desk.names("image") == [image_model.name]
    assert desk.names("text") == ["sentiment (embedded)"]


def test_two_models_of_one_name(image_model):
    with pytest.raises(WhenceError, match="Two models"):
        Desk.with_models([str(image_model), f"{image_model}/../{image_model.name}"])


def test_probabilities_are_those_of_a_plain_forward(desk, image_model):
    seen = desk.look("photos", photo_from(png()))
    loaded = load(image_model)
    pixels = loaded.prepare([Image.new("RGB", (48, 32), "teal")]).inputs
    expected = loaded.model(pixels).logits[0].detach().double().softmax(0)
    assert [c.index for c in seen.chances] == expected.argsort(descending=True).tolist()
    for chance in seen.chances:
        assert chance.probability == pytest.approx(float(expected[chance.index]), rel=1e-5)
        assert chance.name == loaded.class_names[chance.index]


def test_what_is_remembered_is_not_done_again(desk, monkeypatch):
    what = sentence_from("a film , not very good")
    first = desk.explain("texts", what, [0], ["gae"])[0].explanation
    monkeypatch.setattr(Explainer, "explain", None)
    again = desk.explain("texts", sentence_from("a film , not very good"), [0], ["gae"])
    assert again[0].explanation is first


def test_photos_are_remembered_small_and_left_as_they_were(desk):
    what = photo_from(png(1600, 800))
    seen = desk.look("photos", what)
    assert max(seen.prepared.shown[0].size) == SHOWN_SIDE
    assert what.image.size == (1600, 800)


def test_attention_of_a_text_is_the_models_own(desk, text_model):
    from transformers import BertForSequenceClassification

    loaded = desk.models["texts"]
    prepared = loaded.prepare(["the film is not bad"])
    found = read_heads(loaded, prepared, 4)
    model = BertForSequenceClassification.from_pretrained(
        text_model, attn_implementation="eager", dtype=torch.float32
    )
    maps = model(**prepared.inputs, output_attentions=True).attentions
    assert found.names == ["[CLS]", "the", "film", "is", "not", "bad", "[SEP]"]
    for rows, expected in zip(found.rows, maps, strict=True):
        assert torch.allclose(torch.tensor(rows), expected[0, :, 4].double(), atol=1e-6)


def test_attention_of_patches_leaves_out_the_class_token(desk):
    loaded = desk.models["photos"]
    found = read_heads(loaded, loaded.prepare([photo()]), 0)
    assert found.names[:3] == ["class token", "row 1, column 1", "row 1, column 2"]
    assert [rows.shape for rows in found.rows] == [(4, 16), (4, 16)]


def test_head_colors_differ():
    assert len(set(head_colors(16))) == 16
