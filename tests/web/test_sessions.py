"""What Gradio keeps of visitors is bounded, and those who wait get their answer."""

import pytest

from tests.web.client import Client, RefusedError

pytest.importorskip("gradio", reason="whence[web] is not installed")

from whence.web import server, sessions
from whence.web.server import ServerOptions, serve_page

EMPTY = ["texts", "", [], ["random"], ""]  # refused in a moment


@pytest.fixture
def served(service, monkeypatch):
    """A client and the queue of a page that keeps four visitors."""
    pages, build = [], server.build_page
    monkeypatch.setattr(server, "build_page", lambda *args: pages.append(build(*args)) or pages[0])
    monkeypatch.setattr(sessions, "_KEPT", 4)
    with serve_page(service, ServerOptions()) as address, Client(address) as client:
        yield client, pages[0]._queue


def join(client, data=EMPTY, **more):
    answer = client.http.post("/gradio_api/call/explain_text", json={"data": data, **more})
    answer.raise_for_status()
    return answer.json()["event_id"]


def test_visitors_who_are_gone_are_forgotten(served):
    client, queue = served
    for _ in range(12):
        join(client)  # whose answer nobody fetches
        join(client, data=[])  # which Gradio refuses by itself
        with pytest.raises(RefusedError, match="Type a text"):
            client.call("explain_text", *EMPTY)
        assert len(queue.pending_messages_per_session) <= 4 + 5
        assert len(queue.pending_event_ids_session) <= 4 + 5
        assert len(queue.event_analytics) <= 1


def test_a_visitor_who_was_forgotten_may_come_back(served):
    client, _ = served
    for _ in range(2):
        join(client, session_hash="ada")
        for _ in range(6):
            with pytest.raises(RefusedError, match="Type a text"):
                client.call("explain_text", *EMPTY)
    done = join(client, ["texts", "a film", [1], ["random"], ""], session_hash="ada")
    assert "film" in client.wait("explain_text", done)[2]
