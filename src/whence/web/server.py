"""Starting the page."""

from __future__ import annotations

import base64
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import gradio as gr
from starlette.middleware import Middleware

from whence.errors import WhenceError
from whence.render.colors import THEMES, get_colormap
from whence.render.overlay import tabulate_colors, tabulate_opacities
from whence.render.styles import switched_style
from whence.web.desk import Desk
from whence.web.guard import Guard
from whence.web.limits import UPLOAD_BYTES
from whence.web.page import build
from whence.web.uploads import Uploads

# Gradio keeps what each page last showed; nothing here is read back from that.
_SESSIONS = 32
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


@dataclass(frozen=True)
class Place:
    """Where and to whom the page is served.

    Attributes:
        host: The address to listen at.
        port: The port; None for the first free one from 7860.
        auth: A name and a password; None if anyone may use the page.
        queue: How many requests may wait.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    auth: tuple[str, str] | None = None
    queue: int = 16


@contextmanager
def serving(desk: Desk, place: Place) -> Iterator[str]:
    """Serve the page until the block ends; yields its address.

    Raises:
        WhenceError: The address or port cannot be used.
    """
    _check_host(place.host)
    with tempfile.TemporaryDirectory(prefix="whence-") as folder, _environment(folder):
        uploads = Uploads(Path(folder))
        page = build(desk, uploads)
        page.queue(max_size=place.queue, api_open=False)
        hosts = LOOPBACK if place.host in LOOPBACK else ()
        guard = Middleware(Guard, hosts=hosts, uploads=uploads)
        try:
            _, address, _ = page.launch(
                server_name=f"[{place.host}]" if ":" in place.host else place.host,
                server_port=place.port,
                auth=place.auth,
                share=False,
                inbrowser=False,
                prevent_thread_lock=True,
                quiet=True,
                show_error=False,
                max_file_size=UPLOAD_BYTES,
                ssr_mode=False,
                pwa=False,
                mcp_server=False,
                enable_monitoring=False,
                run_history=False,
                state_session_capacity=_SESSIONS,
                footer_links=[],
                app_kwargs={"middleware": [guard], "docs_url": None, "openapi_url": None},
                theme=_theme(),
                css=_css(),
                head=_head(),
            )
        except OSError as error:
            where = "any port from 7860 on" if place.port is None else f"port {place.port}"
            raise WhenceError(
                f"The page cannot be served at {place.host}, {where}: it is taken, or needs rights "
                f"that you do not have. Give another --port."
            ) from error
        try:
            yield address
        finally:
            page.close(verbose=False)


def _check_host(host: str) -> None:
    """See that the machine has this address: Gradio would try a hundred ports of it, one by one.

    Raises:
        WhenceError: It has not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, 0), family=family).close()
    except OSError as error:
        raise WhenceError(
            f"'{host}' is no address of this machine; 0.0.0.0 is for all that it has."
        ) from error


@contextmanager
def _environment(folder: str) -> Iterator[None]:
    """What Gradio asks the environment for: where uploads go, and that nothing is told of us.

    Gradio asks the page whether it is there, which must not go through a proxy.
    """
    own = {"GRADIO_TEMP_DIR": folder, "GRADIO_ANALYTICS_ENABLED": "False"}
    own |= {"NO_PROXY": "*", "no_proxy": "*"}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _theme() -> gr.themes.Base:
    # Fonts by name are those of the reader's system: none is fetched.
    sans = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
    mono = ("ui-monospace", "Consolas", "DejaVu Sans Mono", "monospace")
    theme = gr.themes.Base(primary_hue="slate", neutral_hue="zinc", font=sans, font_mono=mono)
    light, dark = THEMES["light"], THEMES["dark"]
    return theme.set(
        body_background_fill=light.background,
        body_background_fill_dark=dark.background,
        body_text_color=light.ink,
        body_text_color_dark=dark.ink,
        body_text_color_subdued=light.muted,
        body_text_color_subdued_dark=dark.muted,
        block_background_fill=light.background,
        block_background_fill_dark=dark.background,
        block_label_text_color=light.muted,
        block_label_text_color_dark=dark.muted,
        block_title_text_color=light.muted,
        block_title_text_color_dark=dark.muted,
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_700",
    )


def _css() -> str:
    return switched_style(".dark") + _static("page.css")


def _head() -> str:
    return f"<script>{_static('page.js').replace('/*TABLES*/ {}', json.dumps(_tables()))}</script>"


def _tables() -> dict[str, dict[str, object]]:
    """The library's colour maps, so that the browser paints as `render.overlay` does."""
    maps = [get_colormap(name, False) for name in ("heat", "lagoon", "balance")]
    return {
        one.name: {
            "colors": base64.b64encode(tabulate_colors(one).tobytes()).decode(),
            "alphas": base64.b64encode(tabulate_opacities(one, 1.0).tobytes()).decode(),
            "diverging": one.diverging,
        }
        for one in maps
    }


def _static(name: str) -> str:
    return (resources.files("whence.web") / "static" / name).read_text(encoding="utf-8")
