"""The page on a desktop and a phone, light and dark, in a headless Chromium."""

import io

import pytest
from PIL import Image

from tests.web.browser import (
    choose_methods,
    explain_sample,
    fits_screen,
    is_on_screen,
    list_unreadable,
    open_settings,
    press,
    show_view,
    wait_for_maps,
)
from whence import demo
from whence._util.defaults import METHOD
from whence.render.colors import measure_contrast

METHODS = [METHOD, "gae", "input_x_gradient"]
SENTENCE = "A ${1+1} {{value}} film with <b>superb</b> acting, and not bad at all."


def test_a_map_is_seen_without_scrolling_and_a_reload_keeps_it(page):
    maps = explain_sample(page)
    assert is_on_screen(page, ".hero .map")
    assert page.locator(".hero .map").bounding_box()["width"] > 0.4 * page.viewport_size["width"]
    assert fits_screen(page)
    assert list_unreadable(page) == []
    assert "cat, dog, by whence" in page.locator("#whence-live").inner_text()
    page.wait_for_timeout(400)  # writing into the store of the browser
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    assert wait_for_maps(page, 2) == maps
    assert is_on_screen(page, ".hero .map")
    # The photo goes to the server again; nothing is computed again.
    open_settings(page)
    page.wait_for_selector("#panel-image .image-container img")
    assert page.locator("#panel-image .cards :checked").count() == 1
    assert any("upload" in url for url in asked)
    assert not any("queue/join" in url for url in asked)


@pytest.mark.slow
def test_photo(page):
    sample = explain_sample(page)
    open_settings(page)
    page.get_by_label("Remove Image").or_(page.get_by_label("Clear")).first.click()
    page.locator(".empty").first.wait_for(state="attached")
    upload_photo(page)
    wait_for_maps(page, 2)
    choose_methods(page, METHODS)
    press(page, "Explain")
    overlays = wait_for_maps(page, 6)
    assert len(set(overlays)) == 6
    assert sample[0] not in overlays
    assert page.locator(".maps h2").all_inner_texts() == METHODS
    last = page.locator(".cells .map").nth(5)
    last.click()
    assert page.locator(".hero .title").inner_text().split() == [
        *page.locator(".cells figcaption").nth(5).inner_text().split(),
        *("by", METHODS[2], "against", "for"),
    ]
    assert last.get_attribute("aria-pressed") == "true"
    check_comparison(page)
    check_heads(page)
    assert fits_screen(page)
    assert list_unreadable(page) == []


def upload_photo(page):
    """Another photo than the sample: the sample in a mirror."""
    out = io.BytesIO()
    Image.open(demo.PHOTO).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(out, "PNG")
    photo = {"name": "mirrored.png", "mimeType": "image/png", "buffer": out.getvalue()}
    page.locator("input[type=file]").first.set_input_files(photo)


def check_comparison(page):
    show_view(page, "Compare")
    page.wait_for_selector(".curves[data-drawn] .plot path")
    first = page.locator(".curves").first
    assert "on this photo" in first.locator(".verdict").inner_text()
    for part in (".found canvas", ".plot svg", ".step canvas", ".told"):
        assert first.locator(f"article {part}").count() == len(METHODS)
    slider, label = page.locator(".masked input").first, page.locator(".masked output").first
    seen = set()
    for _ in range(3):
        slider.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(200)
        picture = page.locator(".step canvas").first.evaluate("c => c.toDataURL()")
        seen.add((label.inner_text(), picture))
    assert [text for text, _ in sorted(seen)] == ["40% removed", "50% removed", "60% removed"]
    assert len({picture for _, picture in seen}) == 3


def check_heads(page):
    show_view(page, "Heads")
    page.wait_for_selector(".heads[data-drawn] .sheet canvas")
    assert page.locator(".sheet canvas").count() == 24
    picture = page.locator(".layer canvas")
    every = picture.evaluate("c => c.toDataURL()")
    press(page, "head 0")
    assert picture.evaluate("c => c.toDataURL()") != every


@pytest.mark.slow
def test_text(page):
    show_view(page, "Text")
    page.get_by_role("textbox", name="Text").fill(SENTENCE)
    choose_methods(page, [METHOD, "input_x_gradient"])
    press(page, "Explain")
    page.wait_for_selector(".texts .words span")
    assert page.locator(".texts .method").count() == 2
    assert is_on_screen(page, ".texts .words")
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
    page.get_by_role("radio", name="Tokens").check()
    page.locator(".texts .tokens").first.wait_for(state="visible")
    assert not words.first.is_visible()
    page.wait_for_timeout(400)
    page.reload()
    page.wait_for_selector(".texts .words span")
    open_settings(page)
    assert page.get_by_role("textbox", name="Text").input_value() == SENTENCE
    page.keyboard.press("Escape")
    show_view(page, "Compare")
    page.wait_for_selector(".step del")
    show_view(page, "Heads")
    page.wait_for_selector(".layer .tokens span")
    assert fits_screen(page)


def parse_color(color):
    return [int(float(part)) for part in color.partition("(")[2].rstrip(")").split(",")[:3]]
