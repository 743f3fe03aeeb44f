"""Serving the page: address, sign-in, and no connection to anybody else."""

import os
import socket

import pytest

from tests.web.client import Client, make_png
from whence import WhenceError

pytest.importorskip("gradio", reason="whence[web] is not installed")

from whence.web.server import ServerOptions, serve_page


def test_the_page_may_load_nothing_from_other_hosts(client):
    answer = client.http.get("/")
    assert answer.status_code == 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "fonts.googleapis" not in answer.text


def test_with_auth_nothing_works_without_it(service):
    with (
        serve_page(service, ServerOptions(auth=("ada", "horse"))) as address,
        Client(address) as client,
    ):
        request = {"data": ["texts", "a film", [1], ["random"], ""]}
        files = {"files": ("a.png", make_png(), "image/png")}
        assert client.http.post("/gradio_api/call/explain_text", json=request).status_code == 401
        assert client.http.post("/gradio_api/upload", files=files).status_code == 401
        assert client.http.get("/config").status_code == 401
        wrong = {"username": "ada", "password": "cow"}
        assert client.http.post("/login", data=wrong).status_code == 400
        assert client.http.post("/login", data={**wrong, "password": "horse"}).status_code == 200
        assert "film" in client.call("explain_text", *request["data"])[2]


def test_the_server_connects_to_nobody(service, monkeypatch):
    connect, outside = socket.socket.connect, []

    def watched(self, address):
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            outside.append(address)
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    with serve_page(service, ServerOptions()) as address, Client(address) as client:
        client.http.get("/")
        client.call("explain_text", "texts", "a film", [1], ["random"], "")
    assert outside == []


def test_a_taken_port_is_refused(service, client):
    port = client.http.base_url.port
    with (
        pytest.raises(WhenceError, match=f"port {port}"),
        serve_page(service, ServerOptions(port=port)),
    ):
        pass


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid", "2001:db8::1"])
def test_an_address_of_another_machine_is_refused_at_once(service, host, monkeypatch):
    monkeypatch.setattr("gradio.Blocks.launch", None)
    with (
        pytest.raises(WhenceError, match=f"'{host}' is no address"),
        serve_page(service, ServerOptions(host)),
    ):
        pass


def test_loopback_of_ipv6(service):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serve_page(service, ServerOptions("::1")) as address, Client(address) as client:
        assert address.startswith("http://[::1]:")
        assert client.http.get("/").status_code == 200
        assert client.http.get("/", headers={"host": "example.org"}).status_code == 421


def test_no_proxy_is_used(service, monkeypatch):
    """Neither to see whether the page is there, nor by anything while it is."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.org")
    with serve_page(service, ServerOptions()) as address, Client(address) as client:
        assert client.http.get("/").status_code == 200
    assert os.environ["no_proxy"] == "example.org"
