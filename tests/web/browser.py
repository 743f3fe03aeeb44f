"""Helpers that use the page in a headless Chromium."""

import base64
import io

import numpy as np
from PIL import Image


def choose(page, label, names):
    box = page.get_by_label(label).locator("visible=true")
    for name in names:
        box.click()
        box.fill(name)
        box.press("Enter")


def press(page, name):
    page.get_by_role("button", name=name).locator("visible=true").click()


def wait_for_maps(page, count):
    page.wait_for_function(f"document.querySelectorAll('.map[data-drawn]').length === {count}")
    return page.locator(".map canvas").evaluate_all("all => all.map(c => c.toDataURL())")


def decode_pixels(picture):
    """What a data address shows, (height, width, 4)."""
    content = base64.b64decode(picture.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA")).astype(int)
