"""What stands before the page: who may ask, for what, and how much they may send."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from whence.web.limits import BODY_BYTES, FOLDER_BYTES, UPLOAD_BYTES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

# Gradio answers many more: those that run without the queue, fetch addresses or edit the page.
_ALLOWED = re.compile(
    r"/(?:|config/?|theme\.css|favicon\.ico|robots\.txt|manifest\.json|login/?|logout|"
    r"(?:assets|static|svelte)/.+|"
    r"gradio_api/(?:info/?|upload|upload_progress|queue/(?:join|data)|call/.+|file=.+|heartbeat/.+|"
    r"startup-events|app_id/?|theme\.css|cancel|reset/?|user/?|login_check/?|token/?))"
)
_UPLOAD = "/gradio_api/upload"
# Of a multipart form around the file.
_ENVELOPE = 16_384
_HEADERS = {
    # Gradio writes scripts and styles into the page and builds functions from templates; but
    # nothing may come from another place, or go there.
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' "
    "'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; media-src 'self' data: blob:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class TooMuchError(Exception):
    """A request sends more than it may."""


class Guard:
    """Refuses requests before Gradio sees them.

    Args:
        app: What is guarded.
        hosts: Names under which the page may be asked for, without port; any if there are none. A
            page on loopback must not answer to the name of a stranger's site.
        folder: Where uploads lie.
    """

    def __init__(self, app: App, hosts: tuple[str, ...], folder: Path) -> None:
        self.app = app
        self.hosts = hosts
        self.folder = folder

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        is_upload = scope["path"] == _UPLOAD
        most = UPLOAD_BYTES + _ENVELOPE if is_upload else BODY_BYTES
        if self.hosts and _host(headers.get(b"host", b"")) not in self.hosts:
            await _refuse(send, 421, "This page is not served under that name.")
        elif not _ALLOWED.fullmatch(scope["path"]):
            await _refuse(send, 404, "There is nothing here.")
        elif _length(headers) > most:
            await _refuse(send, 413, _too_much(most))
        elif is_upload and _size(self.folder) > FOLDER_BYTES:
            await _refuse(send, 503, "The page is busy: too many files wait. Try again later.")
        else:
            await self._pass(scope, receive, send, most)

    async def _pass(self, scope: Message, receive: Receive, send: Send, most: int) -> None:
        came, answered = 0, False

        async def counted() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > most:
                raise TooMuchError
            return message

        async def with_headers(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        try:
            await self.app(scope, counted, with_headers)
        except TooMuchError:
            if not answered:
                await _refuse(send, 413, _too_much(most))


def _host(value: bytes) -> str:
    return re.sub(r":\d+$", "", value.decode("latin-1")).lower()


def _length(headers: dict[bytes, bytes]) -> int:
    value = headers.get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _too_much(most: int) -> str:
    return f"This is too much: {most:,} bytes are allowed."


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
