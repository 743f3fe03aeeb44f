import os
import shutil

import pytest

from tests.web.client import Client
from whence.models import load
from whence.web.service import ExplanationService


@pytest.fixture(scope="session")
def service(image_model, text_model) -> ExplanationService:
    """Two small models."""
    return ExplanationService({"photos": load(image_model), "texts": load(text_model)})


def serve(service):
    pytest.importorskip("gradio", reason="whence[web] is not installed")
    from whence.web.server import ServerOptions, serve_page

    return serve_page(service, ServerOptions())


@pytest.fixture(scope="module")
def client(service):
    """A client of a page on loopback with two small models."""
    with serve(service) as address, Client(address) as client:
        yield client


@pytest.fixture(scope="module")
def address():
    """The page with the embedded models."""
    with serve(ExplanationService.load()) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )
    if path is None:
        pytest.skip("no Chromium was found; CHROMIUM names one")
    with playwright.sync_playwright() as drivers:
        browser = drivers.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


DESKTOP, PHONE = (1280, 720), (390, 844)


@pytest.fixture(
    params=[(size, scheme) for size in (DESKTOP, PHONE) for scheme in ("light", "dark")],
    ids=lambda p: f"{p[0][0]}-{p[1]}",
)
def page(request, browser, address):
    """A page that was just opened; at the end, it had no errors and asked no other host."""
    (width, height), scheme = request.param
    size = {"width": width, "height": height}
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems, outside = [], []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "response", lambda r: problems.append(f"{r.status} {r.url}") if r.status >= 400 else None
    )

    def watch(route):
        if not route.request.url.startswith((address, "data:", "blob:")):
            outside.append(route.request.url)
        route.continue_()

    page.route("**/*", watch)
    page.goto(address)
    yield page
    context.close()
    assert problems == []
    assert outside == []
