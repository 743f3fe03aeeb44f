"""The page as a program sees it."""

import base64
import io
import json
import os
import re
import socket
import threading
import zipfile
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTForImageClassification

from tests.saved import photo
from tests.web.client import Client, RefusedError, png
from whence import WhenceError, explain
from whence._util.defaults import METHOD
from whence.faithfulness import measure
from whence.models import load
from whence.web.desk import Desk
from whence.web.uploads import Uploads

pytest.importorskip("gradio", reason="whence[web] is not installed")

from whence.web import page
from whence.web.server import Place, serving


def as_png(image):
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def attribute(name, html):
    return [unescape(value) for value in re.findall(rf'{name}="([^"]*)"', html)]


def test_the_page_is_there_and_may_ask_no_other_place(client):
    answer = client.http.get("/")
    assert answer.status_code == 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "fonts.googleapis" not in answer.text


def test_overlays_hold_the_scores_of_the_library(client, desk):
    image, names = photo(), ["tiba", "gae", "random"]
    chances, classes, result = client.call(
        "explain_image", "photos", client.upload(as_png(image)), ["cat", 1], names
    )
    assert chances.count("<li>") == 3
    assert classes["value"] == [0, 1]
    found = attribute("data-scores", result)
    expected = [
        explain(image, desk.models["photos"], classes=[0, 1], method=method).scores[0, at]
        for method in names
        for at in range(2)
    ]
    for shown, scores in zip(found, expected, strict=True):
        assert np.allclose([float(s) for s in shown.split()], scores, rtol=1e-3, atol=1e-7)


def test_without_classes_the_two_most_probable_are_explained(client):
    _, classes, result = client.call("explain_image", "photos", client.upload(png()), [], [METHOD])
    assert len(set(classes["value"])) == 2
    assert result.count('class="map"') == 2


def test_words_hold_the_scores_of_the_library(client, desk):
    _, _, result = client.call(
        "explain_text", "texts", "the film is not bad", ["negative"], ["input_x_gradient"]
    )
    words = re.search(r'<p class="words".*?</p>', result)[0]
    texts = re.findall(r">([^<]+)</span>", words)
    explained = explain(
        "the film is not bad", desk.models["texts"], "negative", method="input_x_gradient"
    )
    scores = [score for _, score in explained.words()]
    largest = max(map(abs, scores))
    assert texts == ["the", "film", "is", "not", "bad"]
    shares = [float(s) for s in attribute("data-share", words)]
    assert np.allclose(shares, [score / largest for score in scores], atol=6e-4)


def test_curves_and_masks_are_those_of_the_library(client, desk):
    image = photo()
    (result,) = client.call(
        "faithful_image", "photos", client.upload(as_png(image)), [2], ["tiba", "gae"]
    )
    (curves,) = map(json.loads, attribute("data-curves", result))
    loaded = desk.models["photos"]
    prepared = loaded.prepare([image])
    explanations = {m: loaded.explain(prepared, classes=[2], method=m) for m in ("tiba", "gae")}
    found = measure(loaded, prepared, explanations)
    assert [one["method"] for one in curves] == [one.method for one in found.ranked(2)]
    for one in curves:
        expected = found.of(one["method"], 2)
        for order in ("most", "least", "random"):
            assert np.allclose(one["curves"][order], expected.curve(order), atol=1e-4)
            content = base64.b64decode(one["masks"][order].partition(",")[2])
            turns = np.asarray(Image.open(io.BytesIO(content)))
            for step in range(len(expected.steps)):
                assert np.array_equal(turns <= step, expected.removed(step, order).numpy())


def test_a_method_has_one_colour_whatever_its_rank(client):
    names = ["tiba", "gae", "random", "rollout"]
    given = client.upload(as_png(photo()))
    (result,) = client.call("faithful_image", "photos", given, [0, 1, 2], names)
    found = [json.loads(curves) for curves in attribute("data-curves", result)]
    assert len({tuple(one["method"] for one in curves) for curves in found}) > 1
    colors = {(one["method"], one["color"]) for curves in found for one in curves}
    assert len(colors) == len({color for _, color in colors}) == len(names)


def test_curves_of_a_text(client):
    (result,) = client.call("faithful_text", "texts", "the film is not bad", [], ["gae"])
    ((one,),) = map(json.loads, attribute("data-curves", result))
    assert one["words"] == ["the", "film", "is", "not", "bad"]
    assert len(one["curves"]["most"]) == 10


def test_heads_hold_the_models_own_attention(client, image_model):
    image = photo()
    update, result = client.call("heads_image", "photos", client.upload(as_png(image)), 3)
    assert update["value"] == 3
    assert len(update["choices"]) == 17
    (found,) = map(json.loads, attribute("data-heads", result))
    model = ViTForImageClassification.from_pretrained(
        image_model, attn_implementation="eager", dtype=torch.float32
    )
    pixels = load(image_model).prepare([image]).inputs
    maps = model(pixels, output_attentions=True).attentions
    for rows, expected in zip(found["rows"], maps, strict=True):
        for row, weights in zip(rows, expected[0, :, 3, 1:], strict=True):
            shares = np.frombuffer(base64.b64decode(row), np.uint8)
            assert np.allclose(shares, 255 * (weights / weights.max()).detach(), atol=0.51)


def test_heads_of_a_text(client):
    update, result = client.call("heads_text", "texts", "the film is not bad", 0)
    assert [name for name, _ in update["choices"]] == [
        *("0: [CLS]", "1: the", "2: film", "3: is", "4: not", "5: bad", "6: [SEP]")
    ]
    (found,) = map(json.loads, attribute("data-heads", result))
    assert found["grid"] is None
    assert len(found["rows"]) == 2


def test_a_bundle_reopens(client):
    given = client.upload(as_png(photo()))
    wanted = ("photos", given, [1, 0], ["tiba", "gae"])
    _, _, result = client.call("explain_image", *wanted)
    (saved,) = client.call("save_image", *wanted)
    content = client.http.get(saved["url"]).content
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        assert {"settings.json", "input.png", "tiba.safetensors", "gae-1.png"} <= set(
            file.namelist()
        )
    what, model, classes, methods, _, opened, *_ = client.call(
        "open_image", client.upload(content, "whence.zip", "application/zip")
    )
    assert client.http.get(what["url"]).content == as_png(photo())
    assert (model, classes["value"], methods) == ("photos", [1, 0], ["tiba", "gae"])
    assert attribute("data-scores", opened) == attribute("data-scores", result)


def test_a_bundle_of_a_text_reopens_on_its_tab_only(client):
    (saved,) = client.call("save_text", "texts", "the film is bad", [1], ["gae"])
    content = client.http.get(saved["url"]).content
    given = client.upload(content, "whence.zip", "application/zip")
    assert client.call("open_text", given)[0] == "the film is bad"
    with pytest.raises(RefusedError, match="other tab"):
        client.call("open_image", given)


def test_a_method_that_fails_says_so_and_the_others_go_on(client, monkeypatch):
    def fails(self, evidence):
        raise WhenceError("No <b>luck</b> today.")

    monkeypatch.setattr("whence.methods.gae.Gae.__call__", fails)
    given = client.upload(png(40, 40, "navy"))
    _, _, result = client.call("explain_image", "photos", given, [0], ["gae", "tiba"])
    assert "No &lt;b&gt;luck&lt;/b&gt; today." in result
    assert result.count('class="map"') == 1


def test_what_nobody_thought_of_is_not_told_to_strangers(client, monkeypatch):
    def broken(*_):
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr("whence.web.page.photo_from", broken)
    with pytest.raises(RefusedError) as refused:
        client.call("explain_image", "photos", client.upload(png()), [], ["tiba"])
    assert "secret" not in str(refused.value)
    assert "log" in str(refused.value)


def test_a_full_queue_says_that_it_is_busy(desk, monkeypatch):
    begun, go = threading.Event(), threading.Event()

    def slow(text):
        begun.set()
        assert go.wait(30)
        return page_sentence(text)

    page_sentence = page.sentence_from
    monkeypatch.setattr("whence.web.page.sentence_from", slow)
    request = {"data": ["texts", "a film", [1], ["random"]]}
    with serving(desk, Place(queue=2)) as address, Client(address) as client:

        def join():
            return client.http.post("/gradio_api/call/explain_text", json=request)

        answers = [join()]
        assert begun.wait(30)
        answers += [join() for _ in range(4)]
        go.set()
        assert [answer.status_code for answer in answers] == [200, 200, 200, 503, 503]
        assert "full" in answers[-1].text
        for answer in answers[:3]:
            assert "film" in client.wait("explain_text", answer.json()["event_id"])[2]
        assert "film" in client.call("explain_text", *request["data"])[2]


def test_with_auth_nothing_works_without_it(desk):
    with serving(desk, Place(auth=("ada", "horse"))) as address, Client(address) as client:
        request = {"data": ["texts", "a film", [1], ["random"]]}
        files = {"files": ("a.png", png(), "image/png")}
        assert client.http.post("/gradio_api/call/explain_text", json=request).status_code == 401
        assert client.http.post("/gradio_api/upload", files=files).status_code == 401
        assert client.http.get("/config").status_code == 401
        wrong = {"username": "ada", "password": "cow"}
        assert client.http.post("/login", data=wrong).status_code == 400
        assert client.http.post("/login", data={**wrong, "password": "horse"}).status_code == 200
        assert "film" in client.call("explain_text", *request["data"])[2]


def test_the_server_connects_to_nobody(desk, monkeypatch):
    connect, outside = socket.socket.connect, []

    def watched(self, address):
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            outside.append(address)
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    with serving(desk, Place()) as address, Client(address) as client:
        client.http.get("/")
        client.call("explain_text", "texts", "a film", [1], ["random"])
    assert outside == []


def test_progress_is_told(client):
    data = ["photos", client.upload(png()), [0, 1], ["gae", "random"]]
    ids = {one["api_name"]: one["id"] for one in client.http.get("/config").json()["dependencies"]}
    request = {"data": data, "fn_index": ids["faithful_image"], "session_hash": "one"}
    client.http.post("/gradio_api/queue/join", json=request).raise_for_status()
    told = []
    with client.http.stream("GET", "/gradio_api/queue/data?session_hash=one") as lines:
        for line in lines.iter_lines():
            if line.startswith("data:"):
                told.append(json.loads(line.removeprefix("data:")))
                if told[-1]["msg"] == "process_completed":
                    break
    steps = [one["progress_data"][0] for one in told if one["msg"] == "progress"]
    assert steps
    assert steps[-1]["desc"] == "Removing parts"


def test_a_taken_port_is_told(desk, client):
    port = client.http.base_url.port
    with pytest.raises(WhenceError, match=f"port {port}"), serving(desk, Place(port=port)):
        pass


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid", "2001:db8::1"])
def test_an_address_of_another_machine_is_told_at_once(desk, host, monkeypatch):
    monkeypatch.setattr(page.gr.Blocks, "launch", None)
    with pytest.raises(WhenceError, match=f"'{host}' is no address"), serving(desk, Place(host)):
        pass


def test_the_other_loopback(desk):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving(desk, Place("::1")) as address, Client(address) as client:
        assert address.startswith("http://[::1]:")
        assert client.http.get("/").status_code == 200
        assert client.http.get("/", headers={"host": "example.org"}).status_code == 421


def test_a_proxy_is_not_asked(desk, monkeypatch):
    """Neither to see whether the page is there, nor by anything while it is."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.org")
    with serving(desk, Place()) as address, Client(address) as client:
        assert client.http.get("/").status_code == 200
    assert os.environ["no_proxy"] == "example.org"


def test_old_uploads_make_room_for_new_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("whence.web.uploads.UPLOAD_BYTES", 10)
    monkeypatch.setattr("whence.web.uploads.FOLDER_BYTES", 40)
    uploads = Uploads(tmp_path)
    paths = []
    for n in range(6):
        paths.append(uploads.keep("a", b"0123456789"))
        os.utime(paths[-1], (n, n))
    assert [Path(path).is_file() for path in paths] == [False, False, True, True, True, True]


def test_memory_is_bounded(desk):
    small = Desk(desk.models)
    for n in range(70):
        small.remembered(("n", n), lambda n=n: n)
    assert len(small._memory) == 64
    assert small.remembered(("n", 69), lambda: "again") == 69
    assert small.remembered(("n", 0), lambda: "again") == "again"
