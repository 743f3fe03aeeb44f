"""Helpers that use the page in a headless Chromium."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from whence.render.colors import measure_contrast


def choose(page, label, names):
    box = page.get_by_label(label).locator("visible=true")
    for name in names:
        box.click()
        box.fill(name)
        box.press("Enter")


def choose_methods(page, names):
    """Choose methods by their cards."""
    open_settings(page)
    more = page.locator("[data-cards]").locator("visible=true")
    if more.get_attribute("aria-expanded") == "false":
        more.click()
    for name in names:
        page.get_by_label(name, exact=False).and_(
            page.locator(f".cards input[name='{name}'], .cards input[value='{name}']")
        ).locator("visible=true").check()


def open_settings(page):
    """Open the panel of settings where it is a sheet, as on a phone."""
    button = page.locator("[data-sheet]").locator("visible=true")
    if button.count() and page.locator(".settings.open").count() == 0:
        button.click()


def press(page, name):
    page.get_by_role("button", name=name).locator("visible=true").click()


def wait_for_maps(page, count):
    page.wait_for_function(
        f"document.querySelectorAll('.cells .map[data-drawn]').length === {count}"
    )
    return page.locator(".cells .map canvas").evaluate_all("all => all.map(c => c.toDataURL())")


def decode_pixels(picture):
    """What a data address shows, (height, width, 4)."""
    content = base64.b64decode(picture.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA")).astype(int)


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
