"""The command `whence serve`: serve the page until Ctrl+C or SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from whence._util.extras import import_extra
from whence.errors import WhenceError

EPILOG = """[bold]Examples[/bold]

    whence serve
    whence serve --model ./my-vit --model ./my-bert
    whence serve --host 0.0.0.0 --auth ada:correct-horse"""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model to offer, as `whence explain` or `generate` takes it; may be repeated. "
            "Without one for photos, texts or generated text, the embedded one."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="A safetensors file, if the one --model is timm:NAME or torchvision:NAME."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="The device, such as cpu or cuda; by default the best available."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="The address to listen at. All but loopback need --auth or --no-auth."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The port; by default the first free one from 7860."),
    ] = None,
    auth: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:PASSWORD",
            envvar="WHENCE_AUTH",
            help="The login of the page. In the variable, no other user of the machine sees it.",
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let anyone who reaches --host use the page.")
    ] = False,
    queue: Annotated[
        int,
        typer.Option(
            min=1, help="How many requests may wait in each lane; further ones are refused."
        ),
    ] = 16,
) -> None:
    """Serve a page that explains photos, texts and what language models write.

    It listens on this machine only, unless --host says otherwise, and sends nothing anywhere.
    """
    login = _parse_login(host, auth, no_auth)
    import_extra("gradio", "gradio", "web")
    typer.echo("Loading…", err=True)
    from whence.web.server import ServerOptions, serve_page
    from whence.web.service import ExplanationService

    with _end_on_signal():
        service = ExplanationService.load(model or (), weights, device)
        with serve_page(service, ServerOptions(host, port, login, queue)) as address:
            typer.echo(f"The page is at {address} (Ctrl+C ends it).")
            threading.Event().wait()


def _parse_login(host: str, auth: str | None, no_auth: bool) -> tuple[str, str] | None:
    """Parse the name and the password that visitors need, or None if they need none."""
    if auth is not None and no_auth:
        raise WhenceError("Give either --auth or --no-auth, not both.")
    if auth is None and not no_auth and host not in _LOOPBACK:
        raise WhenceError(
            f"Others can reach the page at {host}. Set a login with --auth NAME:PASSWORD, or allow "
            f"everyone with --no-auth."
        )
    if auth is None:
        return None
    name, _, password = auth.partition(":")
    if not name or not password:
        raise WhenceError("--auth is a name and a password: NAME:PASSWORD.")
    return name, password


@contextmanager
def _end_on_signal() -> Iterator[None]:
    """End the block, without an error, when SIGTERM or Ctrl+C asks the process to stop.

    The whole block is covered: a signal may arrive while models are loaded, or between the line
    that prints the address and the wait for a signal.
    """

    def stop(_number: int, _frame: object) -> None:
        # A second signal, as `timeout` sends it, must not interrupt the deletion of uploads.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("")
    finally:
        signal.signal(signal.SIGTERM, previous)
