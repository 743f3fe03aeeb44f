"""The page as people use it, in a headless Chromium."""

import base64
import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from whence import demo, explain
from whence._util.defaults import METHOD
from whence.render.colors import get_colormap, measure_contrast
from whence.render.overlay import (
    is_signed,
    stretch_contrast,
    tabulate_colors,
    tabulate_opacities,
    upsample,
)
from whence.web.desk import Desk

pytest.importorskip("gradio", reason="whence[web] is not installed")

from whence.web.server import Place, serving

pytestmark = pytest.mark.slow

METHODS = [METHOD, "gae", "input_x_gradient"]
SENTENCE = "A ${1+1} {{value}} film with <b>superb</b> acting, and not bad at all."


@pytest.fixture(scope="module")
def address():
    """The page with the embedded models."""
    with serving(Desk.with_models(), Place()) as address:
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


@pytest.fixture(
    params=[(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")],
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def page(request, browser, address):
    """A page that was just opened; at the end, nothing was amiss and nobody else was asked."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(20_000)
    amiss, outside = [], []
    page.on("console", lambda m: amiss.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: amiss.append(str(error)))
    page.on("response", lambda r: amiss.append(f"{r.status} {r.url}") if r.status >= 400 else None)

    def watch(route):
        if not route.request.url.startswith((address, "data:", "blob:")):
            outside.append(route.request.url)
        route.continue_()

    page.route("**/*", watch)
    page.goto(address)
    yield page
    context.close()
    assert amiss == []
    assert outside == []


def choose(page, label, names):
    box = page.get_by_label(label).locator("visible=true")
    for name in names:
        box.click()
        box.fill(name)
        box.press("Enter")


def press(page, name):
    page.get_by_role("button", name=name).locator("visible=true").click()


def drawn(page, count):
    page.wait_for_function(f"document.querySelectorAll('.map[data-drawn]').length === {count}")
    return page.locator(".map canvas").evaluate_all("all => all.map(c => c.toDataURL())")


def pixels(picture):
    """What a data address shows, (height, width, 4)."""
    content = base64.b64decode(picture.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA")).astype(int)


def uploaded_photo(page):
    """Another photo than the sample: the sample in a mirror."""
    out = io.BytesIO()
    Image.open(demo.PHOTO).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(out, "PNG")
    photo = {"name": "mirrored.png", "mimeType": "image/png", "buffer": out.getvalue()}
    page.locator("input[type=file]").first.set_input_files(photo)


def test_photo(page):
    press(page, "Use the sample photo")
    sample = drawn(page, 2)
    page.get_by_label("Remove Image").or_(page.get_by_label("Clear")).first.click()
    uploaded_photo(page)
    page.wait_for_function("document.querySelectorAll('.map[data-drawn]').length === 2")
    choose(page, "Methods", METHODS[1:])
    press(page, "Explain")
    overlays = drawn(page, 6)
    assert len(set(overlays)) == 6
    assert sample[0] not in overlays
    assert page.locator(".maps h3").all_inner_texts() == METHODS
    assert page.locator(".maps figcaption").count() == 6
    faithful(page)
    heads(page)
    assert fits(page)
    assert is_readable(page)


def faithful(page):
    press(page, "Is it faithful")
    press(page, "Remove parts")
    page.wait_for_selector(".curves[data-drawn] .plot path")
    assert "on this input" in page.locator(".verdict").first.inner_text()
    slider, told = page.locator(".masked input").first, page.locator(".masked output").first
    seen = set()
    for _ in range(3):
        slider.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(200)
        picture = page.locator(".masked .view canvas").first.evaluate("c => c.toDataURL()")
        seen.add((told.inner_text(), picture))
    assert [text for text, _ in sorted(seen)] == ["40% removed", "50% removed", "60% removed"]
    assert len({picture for _, picture in seen}) == 3


def heads(page):
    press(page, "What do the heads attend to")
    press(page, "Show all heads")
    page.wait_for_selector(".heads[data-drawn] .sheet canvas")
    assert page.locator(".sheet canvas").count() == 24
    picture = page.locator(".layer canvas")
    every = picture.evaluate("c => c.toDataURL()")
    page.get_by_role("button", name="head 0").click()
    assert picture.evaluate("c => c.toDataURL()") != every


# Every visible text, its colour and that of the nearest ground behind it.
TEXTS = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const color = numbers(getComputedStyle(element).backgroundColor);
      if (color.length < 4 || color[3] > 0.5) return color.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const shown = { opacityProperty: true, visibilityProperty: true };
  return [...document.querySelectorAll("body *")]
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
    .filter((e) => e.checkVisibility(shown) && !e.closest("svg, script, style"))
    .map((e) => [e.textContent, numbers(getComputedStyle(e).color).slice(0, 3), ground(e)]);
}"""


def is_readable(page):
    texts = page.evaluate(TEXTS)
    assert len(texts) > 40
    return [text for text, ink, ground in texts if measure_contrast(ink, ground) < 4.5] == []


def fits(page):
    """Whether nothing is wider than the screen."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_text(page):
    page.get_by_role("tab", name="Text").click()
    page.get_by_role("textbox", name="Text").fill(SENTENCE)
    choose(page, "Methods", ["input_x_gradient"])
    press(page, "Explain")
    page.wait_for_selector(".texts .words span")
    assert page.locator(".texts .method").count() == 2
    words = page.locator(".texts .words:not(.tokens)")
    text = "".join(words.first.inner_text().split())
    assert text == "".join(SENTENCE.split())
    shades = (
        words.nth(2)
        .locator("span")
        .evaluate_all(
            "all => all.map(s => [getComputedStyle(s).backgroundColor, getComputedStyle(s).color])"
        )
    )
    assert len({ground for ground, _ in shades}) > 4
    for ground, ink in shades:
        assert measure_contrast(rgb(ink), rgb(ground)) >= 4.5
    page.locator("select[data-control=unit]").select_option("tokens")
    page.locator(".texts .tokens").first.wait_for(state="visible")
    assert not words.first.is_visible()
    press(page, "Is it faithful")
    press(page, "Remove parts")
    page.wait_for_selector(".masked del")
    press(page, "What do the heads attend to")
    press(page, "Show all heads")
    page.wait_for_selector(".layer .tokens span")
    assert fits(page)


def rgb(color):
    return [int(float(part)) for part in color.partition("(")[2].rstrip(")").split(",")[:3]]


@pytest.fixture
def desktop(browser, address):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto(address)
    yield page
    context.close()


def test_the_browser_paints_what_the_library_paints(desktop):
    press(desktop, "Use the sample photo")
    painted = pixels(drawn(desktop, 2)[0])
    explanation = explain(demo.PHOTO, classes=2)
    scores = explanation.scores[0, 0].double().numpy().reshape(explanation.grid)
    colors = get_colormap("auto", is_signed(scores))
    shares = upsample(stretch_contrast(scores), (256, 256))
    levels = 128 + 127 * shares if colors.diverging else 255 * np.clip(shares, 0, 1)
    levels = np.round(levels).astype(int)
    opaque = tabulate_opacities(colors, 0.6)[levels]
    assert np.abs(painted[..., 3] - opaque.astype(int)).max() <= 3
    strong = opaque > 60  # where browsers do not round colours that are see-through
    difference = np.abs(painted[..., :3] - tabulate_colors(colors)[levels].astype(int))[strong]
    assert difference.max() <= 6


def test_controls_repaint_without_a_request(desktop):
    press(desktop, "Use the sample photo")
    (before, _) = drawn(desktop, 2)
    desktop.wait_for_timeout(500)
    asked = []
    desktop.on("request", lambda request: asked.append(request.url))
    pictures = [before]
    for control, value in {"opacity": "1", "colormap": "lagoon", "threshold": "0.5"}.items():
        box = desktop.locator(f"[data-control={control}]").first
        box.select_option(value) if control == "colormap" else box.fill(value)
        desktop.wait_for_timeout(200)
        pictures.append(drawn(desktop, 2)[0])
    assert len(set(pictures)) == 4
    # Half of the largest and less is not shown.
    seen = [(pixels(picture)[..., 3] > 0).sum() for picture in pictures]
    assert seen[3] < 0.5 * seen[2]
    assert asked == []


def test_hover_and_arrow_keys_tell_the_score_of_a_patch(desktop):
    press(desktop, "Use the sample photo")
    drawn(desktop, 2)
    explanation = explain(demo.PHOTO, classes=2)
    rows, columns = explanation.grid
    first = desktop.locator(".map").first
    box = first.bounding_box()
    at = {"x": box["width"] * 2.5 / columns, "y": box["height"] * 1.5 / rows}
    first.hover(position=at)
    score = float(explanation.scores[0, 0, columns + 2])
    assert readout(first) == ("row 2, column 3", pytest.approx(score, rel=1e-2))
    desktop.mouse.move(0, 0)
    first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        desktop.keyboard.press(key)
    score = float(explanation.scores[0, 0, columns + 1])
    assert readout(first) == ("row 2, column 2", pytest.approx(score, rel=1e-2))


def readout(figure):
    place, _, rest = figure.locator(".readout").inner_text().partition(": ")
    return place, float(rest.split()[0])


def test_with_the_keyboard_alone(desktop):
    desktop.get_by_role("tab", name="Photo").focus()
    for _ in range(30):
        desktop.keyboard.press("Tab")
        if desktop.evaluate("document.activeElement.innerText") == "Use the sample photo":
            break
    desktop.keyboard.press("Enter")
    drawn(desktop, 2)
    seen = set()
    for _ in range(40):
        desktop.keyboard.press("Tab")
        seen.add(
            desktop.evaluate(
                "document.activeElement.dataset.control || document.activeElement.className || "
                "document.activeElement.innerText"
            )
        )
    assert {"opacity", "colormap", "threshold", "map"} <= seen
    assert any("Is it faithful" in one for one in seen) or "label-wrap" in " ".join(seen)


def test_a_bundle_is_saved_and_opened(desktop, tmp_path):
    press(desktop, "Use the sample photo")
    before = drawn(desktop, 2)
    press(desktop, "Save and open")
    press(desktop, "Make a bundle")
    with desktop.expect_download() as download:
        desktop.locator("a[download]").click()
    saved = Path(tmp_path) / "whence.zip"
    download.value.save_as(saved)
    desktop.reload()
    press(desktop, "Save and open")
    # The first is for the photo.
    desktop.locator("input[type=file]").nth(1).set_input_files(saved)
    assert drawn(desktop, 2) == before


def test_a_new_input_takes_away_what_was_said_of_the_old_one(desktop):
    press(desktop, "Use the sample photo")
    drawn(desktop, 2)
    press(desktop, "What do the heads attend to")
    press(desktop, "Show all heads")
    desktop.wait_for_selector(".heads[data-drawn]")
    press(desktop, "Use the sample photo")
    desktop.wait_for_selector(".heads", state="detached")


def test_a_full_queue_is_told(desktop):
    full = {"status": 503, "json": {"detail": "Queue is full."}}
    desktop.route("**/queue/join*", lambda route: route.fulfill(**full))
    press(desktop, "Use the sample photo")
    desktop.wait_for_selector("text=currently busy")


def test_mistakes_are_told(desktop):
    desktop.get_by_role("tab", name="Text").click()
    press(desktop, "Explain")
    desktop.wait_for_selector("text=Type a text first")
    desktop.get_by_role("textbox", name="Text").fill("a film")
    desktop.get_by_label("Methods").locator("visible=true").press("Backspace")
    press(desktop, "Explain")
    desktop.wait_for_selector("text=between one and 6 methods")
