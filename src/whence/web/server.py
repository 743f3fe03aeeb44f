"""Serves the page with Gradio: address, sign-in, queue, theme, styles and scripts."""

from __future__ import annotations

import base64
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import gradio as gr
from markupsafe import Markup
from starlette.middleware import Middleware

from whence.errors import WhenceError
from whence.render.colors import THEMES, get_colormap
from whence.render.overlay import tabulate_colors, tabulate_opacities
from whence.render.templates import read_asset, render_template
from whence.web.events import open_lanes
from whence.web.limits import MAX_UPLOAD_BYTES
from whence.web.page import build_page
from whence.web.request_filter import RequestFilter
from whence.web.service import ExplanationService
from whence.web.sessions import NO_RECORDS
from whence.web.uploads import UploadFolder

# Gradio keeps the last values of so many visitors; nothing here reads them.
_SESSIONS = 32
_STYLE_SHEETS = ("gradio", "layout", "results", "details")
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


@dataclass(frozen=True)
class ServerOptions:
    """The address of the page, and who may use it."""

    host: str = "127.0.0.1"
    port: int | None = None  # None for the first free one from 7860
    auth: tuple[str, str] | None = None  # a name and a password; None if anyone may use the page
    queue: int = 16  # how many requests may wait in each lane


@contextmanager
def serve_page(service: ExplanationService, options: ServerOptions) -> Iterator[str]:
    """Serve the page until the block ends, and yield its address."""
    _check_host(options.host)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="whence-"))
        stack.enter_context(_set_environment(folder))
        uploads = UploadFolder(Path(folder))
        page = build_page(service, uploads)
        page.queue(max_size=options.queue, api_open=False)
        stack.enter_context(open_lanes(page, options.queue))
        hosts = LOOPBACK if options.host in LOOPBACK else ()
        request_filter = Middleware(RequestFilter, hosts=hosts, uploads=uploads)
        try:
            _, address, _ = page.launch(
                server_name=f"[{options.host}]" if ":" in options.host else options.host,
                server_port=options.port,
                auth=options.auth,
                share=False,
                inbrowser=False,
                prevent_thread_lock=True,
                quiet=True,
                show_error=False,
                max_file_size=MAX_UPLOAD_BYTES,
                # All that run or wait in the lanes, and room for those who cancel.
                max_threads=2 * (options.queue + 1) + 16,
                ssr_mode=False,
                pwa=False,
                mcp_server=False,
                enable_monitoring=False,
                run_history=False,
                state_session_capacity=_SESSIONS,
                footer_links=[],
                app_kwargs={"middleware": [request_filter], "docs_url": None, "openapi_url": None},
                theme=_make_theme(),
                css=_make_css(),
                head=_make_script(),
            )
        except OSError as error:
            where = "any port from 7860 on" if options.port is None else f"port {options.port}"
            raise WhenceError(
                f"The page cannot be served at {options.host}, {where}: it is taken, or needs "
                f"rights that you do not have. Give another --port."
            ) from error
        try:
            yield address
        finally:
            page.close(verbose=False)


def _check_host(host: str) -> None:
    """Check that the machine has this address. Gradio would try a hundred ports of it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, 0), family=family).close()
    except OSError as error:
        raise WhenceError(
            f"'{host}' is no address of this machine; 0.0.0.0 is for all that it has."
        ) from error


@contextmanager
def _set_environment(folder: str) -> Iterator[None]:
    """Set the variables that Gradio reads: folder of uploads, no analytics, no records, no proxy.

    Gradio sends a request to the page to see that it runs, which must not go through a proxy.
    """
    own = {"GRADIO_TEMP_DIR": folder, "GRADIO_ANALYTICS_ENABLED": "False"}
    own |= {"NO_PROXY": "*", "no_proxy": "*", **NO_RECORDS}
    previous = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]
        os.environ.update({name: value for name, value in previous.items() if value is not None})


def _make_theme() -> gr.themes.Base:
    # The fonts of the visitor's system: none is downloaded.
    sans = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
    mono = ("ui-monospace", "Consolas", "DejaVu Sans Mono", "monospace")
    theme = gr.themes.Base(primary_hue="slate", neutral_hue="zinc", font=sans, font_mono=mono)
    light, dark = THEMES["light"], THEMES["dark"]
    colors = {
        "body_background_fill": (light.background, dark.background),
        "body_text_color": (light.ink, dark.ink),
        "body_text_color_subdued": (light.muted, dark.muted),
        "block_background_fill": (light.background, dark.background),
        "block_label_text_color": (light.muted, dark.muted),
        "block_title_text_color": (light.muted, dark.muted),
        "button_primary_background_fill": (light.ink, dark.ink),
        "button_primary_background_fill_hover": (light.ink, dark.ink),
        "button_primary_text_color": (light.background, dark.background),
        "input_background_fill": (light.background, dark.background),
        "input_border_color": (light.track, dark.track),
        "input_border_width": ("1px", "1px"),
        "checkbox_background_color_selected": (light.ink, dark.bar),
        "checkbox_border_color_selected": (light.ink, dark.bar),
        "checkbox_border_color": (light.muted, dark.muted),
        "slider_color": (light.bar, dark.bar),
    }
    light_colors = {name: pair[0] for name, pair in colors.items()}
    dark_colors = {f"{name}_dark": pair[1] for name, pair in colors.items()}
    return theme.set(**light_colors, **dark_colors)


def _make_css() -> str:
    colors = render_template("render/templates/theme_toggle.css.j2", dark=".dark")
    generation = render_template("render/templates/generation.css.j2")
    sheets = [read_asset(f"web/static/{name}.css") for name in _STYLE_SHEETS]
    return str(Markup().join([colors, *sheets, generation]))


def _make_script() -> str:
    """The scripts, with the library's colour maps, so that browsers draw as `render.overlay`."""
    tables = {
        one.name: {
            "colors": base64.b64encode(tabulate_colors(one).tobytes()).decode(),
            "alphas": base64.b64encode(tabulate_opacities(one, 1.0).tobytes()).decode(),
            "diverging": one.diverging,
        }
        for one in (get_colormap(name, False) for name in ("heat", "lagoon", "balance"))
    }
    return str(render_template("web/templates/script.html.j2", tables=tables))
