"""One class rather than another on the page: results are those of the library."""

import io
import json
import re
import zipfile
from html import unescape

import numpy as np
import pytest
import torch

from tests.saved import make_photo
from tests.web.client import RefusedError, make_png
from whence import WhenceError, explain
from whence.web.bundle import Bundle, pack_bundle, unpack_bundle
from whence.web.service import Choice, get_explanations
from whence.web.validation import decode_photo

pytest.importorskip("gradio", reason="whence[web] is not installed")


def upload_photo(client):
    out = io.BytesIO()
    make_photo().save(out, "PNG")
    return client.upload(out.getvalue())


def read_attributes(name, html):
    return [unescape(value) for value in re.findall(rf'{name}="([^"]*)"', html)]


def test_scores_and_names_are_those_of_the_library(client, service):
    photos = service.models["photos"]
    _, classes, html, other = client.call(
        "explain_image", "photos", upload_photo(client), [2], ["input_x_gradient"], 0
    )
    expected = explain(make_photo(), photos, 2, against=0, method="input_x_gradient")
    plain = explain(make_photo(), photos, classes=[2, 0], method="input_x_gradient").scores[0]
    shown = read_attributes("data-scores", html)
    for scores, right in zip(shown, [expected.scores[0], *plain], strict=True):
        assert np.allclose([float(s) for s in scores.split()], right, rtol=1e-3, atol=1e-7)
    assert (classes["value"], other["value"]) == ([2], 0)
    chance = float(expected.logits[0].double().softmax(0)[2])
    caption = re.search(r"<figcaption>(.*?)</figcaption>", html)[1]
    assert "crane rather than cat" in caption
    assert f"{100 * chance:.1f}%" in caption


def test_a_text(client, service):
    _, _, html, other = client.call(
        "explain_text", "texts", "the film is not bad", [0], ["input_x_gradient"], 1
    )
    assert other["value"] == 1
    first, second = (service.models["texts"].class_names[n] for n in (0, 1))
    assert f"{first} rather than {second}" in html


def test_without_classes_the_most_probable_others_are_explained(client, service):
    ranked = service.predict("photos", decode_photo(make_png())).classes
    _, classes, _, other = client.call(
        "explain_image", "photos", client.upload(make_png()), [], ["gae"], ranked[0].index
    )
    assert classes["value"] == [one.index for one in ranked[1:]]
    assert other["value"] == ranked[0].index


def test_the_other_class_is_not_among_those_explained(client):
    given = client.upload(make_png())
    _, classes, html, _ = client.call("explain_image", "photos", given, [0, 1, 2], ["gae"], 1)
    assert classes["value"] == [0, 2]
    differences, alone = html.split("Each by itself")
    assert (differences.count('class="map"'), alone.count('class="map"')) == (2, 3)


@pytest.mark.parametrize(
    ("against", "message"),
    [
        (0, "choose two different ones"),
        ("cat", "choose two different ones"),
        (99, "does not exist"),
        ("zebra", "no class 'zebra'"),
        ([0], "by its index"),
        ({"a": 1}, "by its index"),
    ],
)
def test_wrong_choices(client, against, message):
    with pytest.raises(RefusedError, match=message):
        client.call("explain_image", "photos", client.upload(make_png()), [0], ["gae"], against)


def test_curves_watch_the_two_classes(client, service):
    names = ["gae", "random"]
    (html,) = client.call("faithful_image", "photos", upload_photo(client), [2], names, 0)
    ((one, _),) = map(json.loads, read_attributes("data-curves", html))
    logits = explain(make_photo(), service.models["photos"]).logits[0].double()
    assert one["curves"]["most"][0] == pytest.approx(
        float(torch.sigmoid(logits[2] - logits[0])), abs=1e-4
    )
    assert "if only these two were possible" in html


def test_a_bundle_keeps_it(client):
    (saved,) = client.call("save_image", "photos", upload_photo(client), [2], ["gae"], 0)
    content = client.http.get(saved["url"]).content
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        assert json.loads(file.read("settings.json"))["against"] == 0
    opened = client.call("open", client.upload(content, "a.zip", "application/zip"))
    _, _, _, _, classes, _, _, html, other, *_ = opened
    assert (classes["value"], other["value"]) == ([2], 0)
    assert "crane rather than cat" in html


@pytest.mark.parametrize("against", [2, 3, -1, True, "cat", [0], 1.0])
def test_forged_bundles_are_refused(service, against):
    photo = decode_photo(make_png())
    prediction = service.predict("photos", photo)
    results = service.explain(prediction, Choice((2,), 0), ["gae"])
    bundle = Bundle("photos", photo, prediction.photo.crop, get_explanations(results), against)
    with pytest.raises(WhenceError, match="does not fit"):
        unpack_bundle(pack_bundle(bundle))
