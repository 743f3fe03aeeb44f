"""Events of the page as a program calls them: results are those of the library."""

import base64
import io
import json
import re
import zipfile
from html import unescape

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTForImageClassification

from tests.saved import make_photo
from tests.web.client import RefusedError, list_changed, make_png
from whence import WhenceError, explain
from whence._util.defaults import METHOD
from whence.faithfulness import measure
from whence.models import load
from whence.web.method_cards import RECOMMENDED

pytest.importorskip("gradio", reason="whence[web] is not installed")


def encode_png(image):
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def read_attributes(name, html):
    return [unescape(value) for value in re.findall(rf'{name}="([^"]*)"', html)]


def test_overlays_hold_the_scores_of_the_library(client, service):
    image, names = make_photo(), ["tiba", "gae", "random"]
    chances, classes, result, _ = client.call(
        "explain_image", "photos", client.upload(encode_png(image)), ["cat", 1], names, ""
    )
    assert chances.count("<li>") == 3
    assert classes["value"] == [0, 1]
    overlays = read_attributes("data-scores", result)
    expected = [
        explain(image, service.models["photos"], classes=[0, 1], method=method).scores[0, at]
        for method in names
        for at in range(2)
    ]
    for shown, scores in zip(overlays, expected, strict=True):
        assert np.allclose([float(s) for s in shown.split()], scores, rtol=1e-3, atol=1e-7)


def test_without_classes_the_two_most_probable_are_explained(client):
    _, classes, result, _ = client.call(
        "explain_image", "photos", client.upload(make_png()), [], [METHOD], ""
    )
    assert len(set(classes["value"])) == 2
    assert result.count('class="map"') == 2


def test_words_hold_the_scores_of_the_library(client, service):
    _, _, result, _ = client.call(
        "explain_text", "texts", "the film is not bad", ["negative"], ["input_x_gradient"], ""
    )
    words = re.search(r'<p class="words".*?</p>', result)[0]
    texts = re.findall(r">([^<]+)</span>", words)
    explained = explain(
        "the film is not bad", service.models["texts"], "negative", method="input_x_gradient"
    )
    scores = [score for _, score in explained.words()]
    largest = max(map(abs, scores))
    assert texts == ["the", "film", "is", "not", "bad"]
    shares = [float(s) for s in read_attributes("data-share", words)]
    assert np.allclose(shares, [score / largest for score in scores], atol=6e-4)


def test_curves_and_masks_are_those_of_the_library(client, service):
    image = make_photo()
    (result,) = client.call(
        "faithful_image", "photos", client.upload(encode_png(image)), [2], ["tiba", "gae"], ""
    )
    (curves,) = map(json.loads, read_attributes("data-curves", result))
    loaded = service.models["photos"]
    prepared = loaded.prepare([image])
    explanations = {m: loaded.explain(prepared, classes=[2], method=m) for m in ("tiba", "gae")}
    faithfulness = measure(loaded, prepared, explanations)
    assert [one["method"] for one in curves] == [one.method for one in faithfulness.rank_methods(2)]
    for one in curves:
        expected = faithfulness.get(one["method"], 2)
        for order in ("most", "least", "random"):
            assert np.allclose(one["curves"][order], expected.get_curve(order), atol=1e-4)
            content = base64.b64decode(one["masks"][order].partition(",")[2])
            turns = np.asarray(Image.open(io.BytesIO(content)))
            for step in range(len(expected.steps)):
                assert np.array_equal(turns <= step, expected.get_mask(step, order).numpy())


def test_a_method_has_one_colour_whatever_its_rank(client):
    names = ["tiba", "gae", "random", "rollout"]
    given = client.upload(encode_png(make_photo()))
    (result,) = client.call("faithful_image", "photos", given, [0, 1, 2], names, "")
    classes = [json.loads(curves) for curves in read_attributes("data-curves", result)]
    assert len({tuple(one["method"] for one in curves) for curves in classes}) > 1
    colors = {(one["method"], one["color"]) for curves in classes for one in curves}
    assert len(colors) == len({color for _, color in colors}) == len(names)


def test_curves_of_a_text(client):
    names = ["gae", "rollout"]
    (result,) = client.call("faithful_text", "texts", "the film is not bad", [], names, "")
    ((one, _),) = map(json.loads, read_attributes("data-curves", result))
    assert one["words"] == ["the", "film", "is", "not", "bad"]
    assert len(one["curves"]["most"]) == 10


def test_one_method_is_compared_with_the_recommended_ones(client):
    given = client.upload(encode_png(make_photo()))
    (result,) = client.call("faithful_image", "photos", given, [2], ["rollout"], "")
    (curves,) = map(json.loads, read_attributes("data-curves", result))
    assert {one["method"] for one in curves} == {"rollout", *RECOMMENDED["image"]}
    assert "It is one photo" in result
    # A row tells what the curves show: 30 % are removed at the fourth step.
    for one, sentence in zip(curves, re.findall(r'class="told">(.*?)</p>', result), strict=True):
        told = [float(number) for number in re.findall(r"([\d.]+)%", sentence)]
        most, least = one["curves"]["most"], one["curves"]["least"]
        right = [30, 100 * most[0], 100 * most[3], 30, 100 * least[3]]
        assert told == pytest.approx(right, abs=0.06)


def test_heads_hold_the_models_own_attention(client, image_model):
    image = make_photo()
    update, result = client.call("heads_image", "photos", client.upload(encode_png(image)), 3)
    assert update["value"] == 3
    assert len(update["choices"]) == 17
    (data,) = map(json.loads, read_attributes("data-heads", result))
    model = ViTForImageClassification.from_pretrained(
        image_model, attn_implementation="eager", dtype=torch.float32
    )
    pixels = load(image_model).prepare([image]).inputs
    maps = model(pixels, output_attentions=True).attentions
    for heads, expected in zip(data["weights"], maps, strict=True):
        for head, weights in zip(heads, expected[0, :, 3, 1:], strict=True):
            shares = np.frombuffer(base64.b64decode(head), np.uint8)
            assert np.allclose(shares, 255 * (weights / weights.max()).detach(), atol=0.51)


def test_heads_of_a_text(client):
    update, result = client.call("heads_text", "texts", "the film is not bad", 0)
    assert [name for name, _ in update["choices"]] == [
        *("0: [CLS]", "1: the", "2: film", "3: is", "4: not", "5: bad", "6: [SEP]")
    ]
    (data,) = map(json.loads, read_attributes("data-heads", result))
    assert data["grid"] is None
    assert len(data["weights"]) == 2


def test_a_bundle_reopens(client):
    given = client.upload(encode_png(make_photo()))
    request = ("photos", given, [1, 0], ["tiba", "gae"], "")
    _, _, result, _ = client.call("explain_image", *request)
    (saved,) = client.call("save_image", *request)
    content = client.http.get(saved["url"]).content
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        assert {"settings.json", "input.png", "tiba.safetensors", "gae-1.png"} <= set(
            file.namelist()
        )
    kinds, views, what, model, classes, methods, _, opened, *_ = client.call(
        "open", client.upload(content, "whence.zip", "application/zip")
    )
    assert (kinds["selected"], views["selected"]) == ("image", "explanation")
    assert client.http.get(what["url"]).content == encode_png(make_photo())
    assert (model, classes["value"], methods) == ("photos", [1, 0], ["tiba", "gae"])
    assert read_attributes("data-scores", opened) == read_attributes("data-scores", result)


def test_a_bundle_opens_on_the_tab_of_its_input(client):
    (saved,) = client.call("save_text", "texts", "the film is bad", [1], ["gae"], "")
    content = client.http.get(saved["url"]).content
    given = client.upload(content, "whence.zip", "application/zip")
    kinds, *values = client.call("open", given)
    assert kinds["selected"] == "text"
    changed = list_changed(values)
    assert changed[0]["selected"] == "explanation"
    assert changed[1:3] == ["the film is bad", "texts"]
    assert len(changed) == len(values) // 2 + 1  # those of the other tab stay
    assert changed[-2:] == [None, None]  # the fields for bundles, which are empty again


def test_a_method_that_fails_says_so_and_the_others_go_on(client, monkeypatch):
    def fails(self, evidence):
        raise WhenceError("No <b>luck</b> today.")

    monkeypatch.setattr("whence.methods.gae.Gae.__call__", fails)
    given = client.upload(make_png(40, 40, "navy"))
    _, _, result, _ = client.call("explain_image", "photos", given, [0], ["gae", "tiba"], "")
    assert "No &lt;b&gt;luck&lt;/b&gt; today." in result
    assert result.count('class="map"') == 1


@pytest.mark.parametrize(
    ("model", "classes", "methods", "message"),
    [
        ("google/vit-base-patch16-224", [0], ["random"], "does not offer"),
        ("/etc", [0], ["random"], "does not offer"),
        ("texts", [0], ["random"], "explains texts"),
        (None, [0], ["random"], "does not offer"),
        (["photos"], [0], ["random"], "does not offer"),
        ("photos", [99], ["random"], "does not exist"),
        ("photos", ["zebra"], ["random"], "no class 'zebra'"),
        ("photos", [0, 1, 2, 0, 1], ["random"], "up to 4 classes"),
        ("photos", [[0, 1, 2, 0, 1]], ["random"], "by its index"),
        ("photos", [{"a": 1}], ["random"], "by its index"),
        ("photos", "cat", ["random"], "up to 4 classes"),
        ("photos", [0], ["os.system"], "no method 'os.system'"),
        ("photos", [0], [["random"]], "no method"),
        ("photos", [0], [], "6 methods"),
        ("photos", [0], ["random"] * 7, "6 methods"),
        ("photos", [0], "random", "6 methods"),
        ("photos", [0], None, "6 methods"),
    ],
)
def test_requests_for_what_is_not_offered(client, model, classes, methods, message):
    with pytest.raises(RefusedError, match=message):
        client.call("explain_image", model, client.upload(make_png()), classes, methods, "")


@pytest.mark.parametrize("token", [-1, 17, "x", None, [1], 1e99])
def test_tokens_that_are_not_there(client, token):
    with pytest.raises(RefusedError, match="token"):
        client.call("heads_image", "photos", client.upload(make_png()), token)
