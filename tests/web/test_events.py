"""How events run: one after the other, with progress, and errors as sentences."""

import json
import threading

import pytest

from tests.web.client import Client, RefusedError, make_png

pytest.importorskip("gradio", reason="whence[web] is not installed")

from whence._util.progress import check_watcher
from whence.web import handlers
from whence.web.lanes import enter_slow_lane
from whence.web.server import ServerOptions, serve_page


def test_unexpected_errors_go_to_the_log_only(client, monkeypatch):
    def broken(*_):
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr("whence.web.handlers.decode_photo", broken)
    with pytest.raises(RefusedError) as refused:
        client.call("explain_image", "photos", client.upload(make_png()), [], ["tiba"], "")
    assert "secret" not in str(refused.value)
    assert "log" in str(refused.value)


def test_errors_are_text_and_no_html(client):
    with pytest.raises(RefusedError) as refused:
        client.call("explain_text", "texts", "a film", [], ["<img src=x>"], "")
    assert "There is no method '&lt;img src=x&gt;'" in str(refused.value)


def test_a_full_queue_says_that_it_is_busy(service, monkeypatch):
    begun, go = threading.Event(), threading.Event()

    def slow(text):
        begun.set()
        assert go.wait(30)
        return check_text(text)

    check_text = handlers.check_text
    monkeypatch.setattr("whence.web.handlers.check_text", slow)
    request = {"data": ["texts", "a film", [1], ["random"], ""]}
    with serve_page(service, ServerOptions(queue=2)) as address, Client(address) as client:

        def join():
            return client.http.post("/gradio_api/call/explain_text", json=request)

        answers = [join()]
        assert begun.wait(30)
        answers += [join() for _ in range(2)]
        with pytest.raises(RefusedError, match="busy"):
            client.call("explain_text", *request["data"])
        go.set()
        for answer in answers:
            assert "film" in client.wait("explain_text", answer.json()["event_id"])[2]
        assert "film" in client.call("explain_text", *request["data"])[2]


def test_closing_the_page_ends_slow_work(service, monkeypatch):
    begun = threading.Event()

    def endless(_):
        enter_slow_lane()
        begun.set()
        while True:
            check_watcher()

    request = {"data": ["texts", "a film", [1], ["random"], ""]}
    with monkeypatch.context() as patch:
        patch.setattr("whence.web.handlers.check_text", endless)
        with serve_page(service, ServerOptions()) as address, Client(address) as client:
            client.http.post("/gradio_api/call/explain_text", json=request).raise_for_status()
            assert begun.wait(30)
    # The one thread for slow work is free again.
    with serve_page(service, ServerOptions()) as address, Client(address) as client:
        html = client.call("explain_text", "texts", "a film", [1], ["occlusion"], "")[2]
    assert "film" in html


def test_progress_is_reported(client):
    data = ["photos", client.upload(make_png()), [0, 1], ["gae", "random"], ""]
    ids = {one["api_name"]: one["id"] for one in client.http.get("/config").json()["dependencies"]}
    request = {"data": data, "fn_index": ids["faithful_image"], "session_hash": "one"}
    client.http.post("/gradio_api/queue/join", json=request).raise_for_status()
    messages = []
    with client.http.stream("GET", "/gradio_api/queue/data?session_hash=one") as lines:
        for line in lines.iter_lines():
            if line.startswith("data:"):
                messages.append(json.loads(line.removeprefix("data:")))
                if messages[-1]["msg"] == "process_completed":
                    break
    steps = [one["progress_data"][0] for one in messages if one["msg"] == "progress"]
    assert steps
    assert steps[-1]["desc"] == "Removing parts"
    assert steps[-1]["index"] == steps[-1]["length"] > 1
