"""Helpers that use the page in a headless Chromium."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from whence.render.colors import measure_contrast


def choose(page, label, names):
    """Choose in a field of many names."""
    open_settings(page)
    box = page.get_by_role("combobox", name=label).locator("visible=true")
    for name in names:
        box.click()
        box.fill(name)
        box.press("Enter")


def choose_methods(page, names):
    """Choose methods by their cards, and no others."""
    open_settings(page)
    more = page.locator("[data-cards]").locator("visible=true")
    if more.get_attribute("aria-expanded") == "false":
        more.click()
    for card in page.locator(".cards label").locator("visible=true").all():
        card.locator("input").set_checked(card.locator("b").inner_text() in names)


def open_settings(page):
    """Open the panel of settings where it is a sheet, as on a phone."""
    button = page.locator("[data-sheet]").locator("visible=true")
    if button.count() and page.locator(".settings.open").count() == 0:
        button.click()


def press(page, name):
    page.get_by_role("button", name=name, exact=True).locator("visible=true").click()


def show_view(page, name):
    """Open one of the views of the results."""
    page.get_by_role("tab", name=name, exact=True).locator("visible=true").click()


def explain_sample(page):
    """Explain the sample photo; returns the maps as they are painted."""
    press(page, "Use the sample photo")
    return wait_for_maps(page, 2)


def wait_for_maps(page, count):
    page.wait_for_function(
        f"document.querySelectorAll('.cells .map[data-drawn]').length === {count}"
    )
    return page.locator(".cells .map canvas").evaluate_all("all => all.map(c => c.toDataURL())")


def is_on_screen(page, selector):
    """Whether all of an element is seen without scrolling."""
    box, size = page.locator(selector).first.bounding_box(), page.viewport_size
    has_scrolled = page.evaluate("window.scrollY !== 0")
    right, bottom = box["x"] + box["width"], box["y"] + box["height"]
    return (
        not has_scrolled
        and min(box["x"], box["y"]) >= 0
        and right <= size["width"]
        and bottom <= size["height"]
    )


def decode_pixels(picture):
    """What a data address shows, (height, width, 4)."""
    content = base64.b64decode(picture.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA")).astype(int)


# Every visible text, its colour and that of the nearest ground behind it.
TEXTS = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const numbers = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const color = numbers(getComputedStyle(element).backgroundColor);
      if (color[3] > 128) return color.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const shown = { opacityProperty: true, visibilityProperty: true };
  return [...document.querySelectorAll("body *")]
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
    .filter((e) => e.checkVisibility(shown) && !e.closest("svg, script, style"))
    .map((e) => [e.textContent, numbers(getComputedStyle(e).color).slice(0, 3), ground(e)]);
}"""


def list_unreadable(page):
    """The texts whose contrast is too low."""
    texts = page.evaluate(TEXTS)
    assert len(texts) > 20
    return [text for text, ink, ground in texts if measure_contrast(ink, ground) < 4.5]


def fits_screen(page):
    """Whether nothing is wider than the screen."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def find_violations(page):
    """What axe-core calls serious or critical, with the elements."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:200]} {node['failureSummary'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
