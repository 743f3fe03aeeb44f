"""What stands before the page: who may ask, for what, and how much they may send."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from whence.errors import WhenceError
from whence.web.limits import BODY_BYTES, UPLOAD_BYTES
from whence.web.uploads import Uploads

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
_WORK = re.compile(r"/gradio_api/(?:queue/join|call/.+)")
_UPLOAD = "/gradio_api/upload"
_FILE = "/gradio_api/file="
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


class Guard:
    """Refuses requests before Gradio sees them.

    Args:
        app: What is guarded.
        hosts: Names under which the page may be asked for, without port; any if there are none. A
            page on loopback must not answer to the name of a stranger's site.
        uploads: The only files that a request may name.
    """

    def __init__(self, app: App, hosts: tuple[str, ...], uploads: Uploads) -> None:
        self.app = app
        self.hosts = hosts
        self.uploads = uploads

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            answer = _Answer(send)
            try:
                await self.app(*await self._checked(scope, receive), answer)
            except RefusedError as refused:
                if not answer.begun:
                    await _refuse(send, refused.status, str(refused))

    async def _checked(self, scope: Message, receive: Receive) -> tuple[Message, Receive]:
        """The same request, if it may pass.

        Raises:
            RefusedError: It may not.
        """
        headers, path = {name.lower(): value for name, value in scope["headers"]}, scope["path"]
        if self.hosts and _host(headers.get(b"host", b"")) not in self.hosts:
            raise RefusedError(421, "This page is not served under that name.")
        if not _ALLOWED.fullmatch(path):
            raise RefusedError(404, "There is nothing here.")
        most = UPLOAD_BYTES + _ENVELOPE if path == _UPLOAD else BODY_BYTES
        if _length(headers) > most:
            raise RefusedError(413, _too_much(most))
        if path == _UPLOAD:
            self.uploads.make_room()
        if path.startswith(_FILE):
            self._check_file(path.removeprefix(_FILE))
        receive = _counted(receive, most)
        if scope["method"] == "POST" and _WORK.fullmatch(path):
            scope, receive = await self._checked_work(scope, receive)
        return scope, receive

    def _check_file(self, path: str) -> None:
        """See that it is an upload: Gradio would fetch an address, and hand out what lies there."""
        try:
            self.uploads.find(path)
        except WhenceError as error:
            raise RefusedError(403, str(error)) from None

    async def _checked_work(self, scope: Message, receive: Receive) -> tuple[Message, Receive]:
        """A request for work that names no file but uploads."""
        try:
            request = json.loads(await _body(receive))
            self.uploads.check(request)
        except WhenceError as error:
            raise RefusedError(400, str(error)) from None
        except (ValueError, RecursionError):
            raise RefusedError(400, "This is not JSON.") from None
        # Written anew, so that Gradio reads what was checked, and not the same bytes otherwise.
        body = json.dumps(request).encode()
        others = [(n, v) for n, v in scope["headers"] if n.lower() != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        return {**scope, "headers": [*others, length]}, _sent(body, receive)


class RefusedError(Exception):
    """A request is not let through, for this reason."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def _counted(receive: Receive, most: int) -> Receive:
    """Receives no more bytes than that."""
    came = 0

    async def counted() -> Message:
        nonlocal came
        message = await receive()
        came += len(message.get("body", b""))
        if came > most:
            raise RefusedError(413, _too_much(most))
        return message

    return counted


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):  # the end, or a client that went away
            return bytes(body)


def _sent(body: bytes, receive: Receive) -> Receive:
    """Receives a body that is known, and then whatever follows."""
    waiting = [body]

    async def sent() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return sent


class _Answer:
    """Sends an answer with the guard's headers."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message.get("headers", []), *own]
        await self.send(message)


def _host(value: bytes) -> str:
    return re.sub(r":\d+$", "", value.decode("latin-1")).lower()


def _length(headers: dict[bytes, bytes]) -> int:
    value = headers.get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


def _too_much(most: int) -> str:
    return f"This is too much: {most:,} bytes are allowed."


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
