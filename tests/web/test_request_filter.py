"""Requests of people who mean no good: each is refused in a sentence, and the page goes on."""

import json
import os
from pathlib import Path

import pytest

from tests.web.client import RefusedError, make_png
from whence.web.limits import MAX_BODY_BYTES, MAX_UPLOAD_BYTES

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def test_names_with_paths_stay_in_the_folder(client):
    folder = Path(os.environ["GRADIO_TEMP_DIR"]).resolve()
    for name in (
        "../../escaped.png",
        "/etc/escaped.png",
        "..\\..\\escaped.png",
        "a\0b.png",
        "x" * 900,
    ):
        path = Path(client.upload(make_png(), name)["path"])
        assert path.resolve().is_relative_to(folder)
        assert path.read_bytes() == make_png()


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "pyproject.toml",
        "../../../../etc/passwd",
        "file:///etc/passwd",
        "http://127.0.0.1:1/a.png",
        "https://example.org/a.png",
        "\0",
        "/" + "a" * 5000,
        7,
        None,
        ["/etc/passwd"],
        {"path": "/etc/passwd"},
    ],
)
def test_requests_name_no_other_files(client, path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("an address was fetched")

    monkeypatch.setattr("gradio.processing_utils.async_ssrf_protected_download", never)
    given = client.file(path)
    for name, data in {
        "explain_image": ["photos", given, [0], ["random"], ""],
        "explain_text": ["texts", given, [0], ["random"], ""],
        "open": [given],
        "heads_image": [given, given, given],
    }.items():
        with pytest.raises(RefusedError, match=r"400.*no file that was uploaded"):
            client.call(name, *data)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/proc/self/environ",
        "pyproject.toml",
        "../pyproject.toml",
        "..%2f..%2fetc%2fpasswd",
    ],
)
def test_files_of_the_machine_are_not_served(client, path):
    for route in ("/gradio_api/file=", "/static/", "/assets/", "/svelte/"):
        answer = client.http.get(route + path)
        assert answer.status_code in (403, 404)
        assert "root:" not in answer.text


def test_the_server_fetches_nothing_for_others(client, monkeypatch):
    """Gradio would: whoever reaches the page could read public addresses through it."""
    asked = []

    async def fetched(address, _request):
        asked.append(address)

    monkeypatch.setattr("gradio.routes.secure_url_stream_response", fetched)
    for address in ("https://example.org/a.png", "http:/example.org", "HTTPS://example.org"):
        for route in (client.http.get, client.http.head):
            assert route(f"/gradio_api/file={address}").status_code == 403
    assert asked == []


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/run/explain_text",
        "/gradio_api/api/explain_text",
        "/gradio_api/proxy=https://example.org/",
        "/gradio_api/component_server",
        "/gradio_api/vibe-edit",
        "/gradio_api/process_recording",
        "/gradio_api/runs",
        "/gradio_api/deep_link",
        "/monitoring",
        "/docs",
        "/openapi.json",
        "//etc/passwd",
    ],
)
def test_what_the_page_does_not_need_is_not_there(client, path):
    assert client.http.get(path).status_code == 404
    assert client.http.post(path, json={"data": []}).status_code == 404


def test_a_page_on_loopback_answers_to_no_other_name(client):
    assert client.http.get("/", headers={"host": "evil.example"}).status_code == 421
    assert client.http.get("/", headers={"host": "localhost:7860"}).status_code == 200


def test_ten_megabytes_of_text(client):
    request = {"data": ["texts", "a" * 10_000_000, [], ["random"], ""]}
    answer = client.http.post("/gradio_api/call/explain_text", json=request)
    assert (answer.status_code, "too much" in answer.text) == (413, True)


def test_a_body_that_does_not_tell_its_length(client):
    def endless():
        for _ in range(MAX_BODY_BYTES // 1000 + 2):
            yield b" " * 1000

    answer = client.http.post("/gradio_api/call/explain_text", content=endless())
    assert answer.status_code == 413


def test_an_upload_that_is_too_large(client):
    files = {"files": ("a.png", b"\0" * (MAX_UPLOAD_BYTES + 100_000), "image/png")}
    assert client.http.post("/gradio_api/upload", files=files).status_code == 413


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b'{"data": 7}', b"[]"]
)
def test_bodies_that_are_no_request(client, body):
    headers = {"content-type": "application/json"}
    answer = client.http.post("/gradio_api/call/explain_text", content=body, headers=headers)
    assert 400 <= answer.status_code < 500


def test_wrong_content_types(client):
    body = json.dumps({"data": ["texts", "a film", [1], ["random"], ""]})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = client.http.post(
            "/gradio_api/call/explain_text", content=body, headers={"content-type": kind}
        )
        assert 400 <= answer.status_code < 500
    assert client.http.post("/gradio_api/upload", content=make_png()).status_code == 400


def test_an_uploaded_svg_or_page_is_never_shown_as_one(client):
    for name in ("a.svg", "a.html"):
        path = client.upload(SVG, name, "text/html")["path"]
        answer = client.http.get(f"/gradio_api/file={path}")
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_markup_in_a_text_stays_text(client):
    words = '<img src=x onerror="alert(1)"> film'
    chances, _, result, _ = client.call("explain_text", "texts", words, [1], ["random"], "")
    assert "<img" not in chances + result


def test_the_page_goes_on_after_all_that(client):
    assert "film" in client.call("explain_text", "texts", "a film", [1], ["random"], "")[2]
