"""Refuses HTTP requests before Gradio sees them: by host, path, size and the files they name."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from whence.errors import WhenceError
from whence.web.limits import MAX_BODY_BYTES, MAX_UPLOAD_BYTES
from whence.web.uploads import UploadFolder

# The types of ASGI, as its specification names them.
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

# Gradio has many more routes: some run without the queue, fetch addresses or edit the page.
_ALLOWED_PATHS = re.compile(
    r"/(?:|config/?|theme\.css|favicon\.ico|robots\.txt|manifest\.json|login/?|logout|"
    r"(?:assets|static|svelte)/.+|"
    r"gradio_api/(?:info/?|upload|upload_progress|queue/(?:join|data)|call/.+|file=.+|heartbeat/.+|"
    r"startup-events|app_id/?|theme\.css|cancel|reset/?|user/?|login_check/?|token/?))"
)
_EVENT_PATHS = re.compile(r"/gradio_api/(?:queue/join|call/.+)")
_UPLOAD_PATH = "/gradio_api/upload"
_FILE_PATH = "/gradio_api/file="
# Bytes of a multipart form around the file.
_FORM_BYTES = 16_384
_HEADERS = {
    # Gradio writes scripts and styles into the page and builds functions from templates. But
    # nothing may come from another host, or go there.
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' "
    "'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; media-src 'self' data: blob:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class RequestRefusedError(Exception):
    """A request is refused with an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class RequestFilter:
    """ASGI middleware that lets through only the requests that the page needs.

    It answers to `hosts`, names without port, or to any if there are none: a page on loopback must
    not answer to the name of a stranger's site.
    """

    def __init__(self, app: App, hosts: tuple[str, ...], uploads: UploadFolder) -> None:
        self.app, self.hosts, self.uploads = app, hosts, uploads

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            response = _Response(send)
            try:
                await self.app(*await self._check(scope, receive), response)
            except RequestRefusedError as error:
                if not response.has_started:
                    await _send_refusal(send, error.status, str(error))

    async def _check(self, scope: Message, receive: Receive) -> tuple[Message, Receive]:
        """Check a request, and return it as Gradio may read it."""
        headers, path = {name.lower(): value for name, value in scope["headers"]}, scope["path"]
        host = re.sub(r":\d+$", "", headers.get(b"host", b"").decode("latin-1")).lower()
        if self.hosts and host not in self.hosts:
            raise RequestRefusedError(421, "This page is not served under that name.")
        if not _ALLOWED_PATHS.fullmatch(path):
            raise RequestRefusedError(404, "There is nothing here.")
        max_bytes = MAX_UPLOAD_BYTES + _FORM_BYTES if path == _UPLOAD_PATH else MAX_BODY_BYTES
        length = headers.get(b"content-length", b"")
        _check_size(int(length) if length.isdigit() else 0, max_bytes)
        if path == _UPLOAD_PATH:
            self.uploads.make_room()
        if path.startswith(_FILE_PATH):
            # Gradio would fetch an address, and serve what it got.
            try:
                self.uploads.find(path.removeprefix(_FILE_PATH))
            except WhenceError as error:
                raise RequestRefusedError(403, str(error)) from None
        receive = _limit_size(receive, max_bytes)
        if scope["method"] == "POST" and _EVENT_PATHS.fullmatch(path):
            return await self._check_event(scope, receive)
        return scope, receive

    async def _check_event(self, scope: Message, receive: Receive) -> tuple[Message, Receive]:
        """Check that the body of an event is JSON that names no file but uploads."""
        try:
            request = json.loads(await _read_body(receive))
            self.uploads.check_request(request)
        except WhenceError as error:
            raise RequestRefusedError(400, str(error)) from None
        except (ValueError, RecursionError):
            raise RequestRefusedError(400, "This is not JSON.") from None
        # Encoded anew, so that Gradio cannot parse the same bytes to something else.
        body = json.dumps(request).encode()
        others = [(n, v) for n, v in scope["headers"] if n.lower() != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        return {**scope, "headers": [*others, length]}, _replace_body(body, receive)


class _Response:
    """Sends a response with the headers of the filter, and knows whether it has started."""

    def __init__(self, send: Send) -> None:
        self.send, self.has_started = send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message.get("headers", []), *own]
        await self.send(message)


def _limit_size(receive: Receive, max_bytes: int) -> Receive:
    """Wrap `receive` so that it refuses a body of more bytes."""
    count = 0

    async def receive_within_limit() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        _check_size(count, max_bytes)
        return message

    return receive_within_limit


def _check_size(count: int, max_bytes: int) -> None:
    if count > max_bytes:
        raise RequestRefusedError(413, f"This is too much: {max_bytes:,} bytes are allowed.")


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):  # the end, or a client that went away
            return bytes(body)


def _replace_body(body: bytes, receive: Receive) -> Receive:
    """Wrap `receive` so that it first gives this body, and then what follows."""
    waiting = [body]

    async def receive_body() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return receive_body


async def _send_refusal(send: Send, status: int, sentence: str) -> None:
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
