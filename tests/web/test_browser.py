"""The whole page on wide and narrow screens, light and dark, in a headless Chromium."""

import io

import pytest
from PIL import Image

from tests.web.browser import choose, fits_screen, is_readable, press, wait_for_maps
from whence import demo
from whence._util.defaults import METHOD
from whence.render.colors import measure_contrast

pytestmark = pytest.mark.slow

METHODS = [METHOD, "gae", "input_x_gradient"]
SENTENCE = "A ${1+1} {{value}} film with <b>superb</b> acting, and not bad at all."


def upload_photo(page):
    """Another photo than the sample: the sample in a mirror."""
    out = io.BytesIO()
    Image.open(demo.PHOTO).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(out, "PNG")
    photo = {"name": "mirrored.png", "mimeType": "image/png", "buffer": out.getvalue()}
    page.locator("input[type=file]").first.set_input_files(photo)


def test_photo(page):
    press(page, "Use the sample photo")
    sample = wait_for_maps(page, 2)
    page.get_by_label("Remove Image").or_(page.get_by_label("Clear")).first.click()
    scores = page.locator(".map").first.get_attribute("data-scores")
    upload_photo(page)
    # The maps of the sample stay until those of the upload replace them.
    page.wait_for_function(
        "old => { const map = document.querySelector('.map[data-drawn]');"
        " return map && map.dataset.scores !== old }",
        arg=scores,
    )
    wait_for_maps(page, 2)
    choose(page, "Methods", METHODS[1:])
    press(page, "Explain")
    overlays = wait_for_maps(page, 6)
    assert len(set(overlays)) == 6
    assert sample[0] not in overlays
    assert page.locator(".maps h3").all_inner_texts() == METHODS
    assert page.locator(".maps figcaption").count() == 6
    check_faithfulness(page)
    check_heads(page)
    assert fits_screen(page)
    assert is_readable(page)


def check_faithfulness(page):
    press(page, "Is it faithful")
    press(page, "Remove parts")
    page.wait_for_selector(".curves[data-drawn] .plot path")
    assert "on this input" in page.locator(".verdict").first.inner_text()
    slider, label = page.locator(".masked input").first, page.locator(".masked output").first
    seen = set()
    for _ in range(3):
        slider.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(200)
        picture = page.locator(".masked .view canvas").first.evaluate("c => c.toDataURL()")
        seen.add((label.inner_text(), picture))
    assert [text for text, _ in sorted(seen)] == ["40% removed", "50% removed", "60% removed"]
    assert len({picture for _, picture in seen}) == 3


def check_heads(page):
    press(page, "What do the heads attend to")
    press(page, "Show all heads")
    page.wait_for_selector(".heads[data-drawn] .sheet canvas")
    assert page.locator(".sheet canvas").count() == 24
    picture = page.locator(".layer canvas")
    every = picture.evaluate("c => c.toDataURL()")
    page.get_by_role("button", name="head 0").click()
    assert picture.evaluate("c => c.toDataURL()") != every


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
        assert measure_contrast(parse_color(ink), parse_color(ground)) >= 4.5
    page.locator("select[data-control=unit]").select_option("tokens")
    page.locator(".texts .tokens").first.wait_for(state="visible")
    assert not words.first.is_visible()
    press(page, "Is it faithful")
    press(page, "Remove parts")
    page.wait_for_selector(".masked del")
    press(page, "What do the heads attend to")
    press(page, "Show all heads")
    page.wait_for_selector(".layer .tokens span")
    assert fits_screen(page)


def parse_color(color):
    return [int(float(part)) for part in color.partition("(")[2].rstrip(")").split(",")[:3]]
