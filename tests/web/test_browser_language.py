"""The tab for language models, on wide and narrow screens, light and dark, in Chromium."""

import pytest

from tests.web.browser import (
    fits_screen,
    is_on_screen,
    list_unreadable,
    open_settings,
    press,
    show_view,
)
from whence.demo import PROMPTS

pytestmark = pytest.mark.slow


def open_tab(page):
    show_view(page, "Language model")


def read_status(page):
    return page.locator(".generation .status").first.inner_text()


def find_word(page, name):
    return page.locator(".generated", has_text=name).first


def test_a_word_shows_what_it_came_from(page):
    open_tab(page)
    press(page, "Sample 1")
    page.wait_for_selector(".generation[data-drawn]")
    assert is_on_screen(page, ".generation")
    page.wait_for_timeout(400)
    page.reload()
    page.wait_for_selector(".generation[data-drawn]")
    open_settings(page)
    assert page.get_by_label("Prompt").input_value() == PROMPTS[0]
    page.keyboard.press("Escape")
    # The first generated word is chosen, and its strongest sources have colours.
    assert read_status(page).startswith("dog")
    assert page.locator(".generation [class*=wp]").count() > 2
    second = page.locator(".generated").nth(1)
    second.hover()
    name = second.inner_text()
    assert read_status(page).startswith(name)
    assert second.get_attribute("aria-pressed") == "true"
    page.keyboard.press("Escape")
    find_word(page, "dog").focus()
    assert read_status(page).startswith("dog")
    page.keyboard.press("ArrowRight")
    assert read_status(page).startswith(name)
    assert find_word(page, "dog").evaluate("e => getComputedStyle(e).textDecorationLine") == (
        "underline"
    )
    check_contrast(page)
    assert fits_screen(page)
    assert list_unreadable(page) == []


def check_contrast(page):
    show_view(page, "Why not another word")
    page.wait_for_function("document.querySelector('[aria-label=\"Generated token\"]')?.value")
    other = page.get_by_label("Rather than").locator("visible=true")
    other.fill("bird")
    other.press("Enter")
    press(page, "Explain the difference")
    page.get_by_role("heading", name="dog rather than bird").wait_for()
    page.wait_for_function("document.querySelectorAll('.generation[data-drawn]').length === 2")
    assert page.locator(".generation .status").nth(1).inner_text().startswith("dog")


@pytest.fixture
def phone(browser, address):
    size = {"width": 390, "height": 844}
    context = browser.new_context(viewport=size, has_touch=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    yield page
    context.close()


def test_by_touch(phone):
    open_tab(phone)
    press(phone, "Sample 2")
    phone.wait_for_selector(".generation[data-drawn]")
    find_word(phone, "Lily").tap()
    assert read_status(phone).startswith("Lily")


def test_mistakes_show_a_message(phone):
    open_tab(phone)
    press(phone, "Generate")
    assert phone.wait_for_selector("text=Type a text first").is_visible()
    phone.get_by_label("Prompt").fill("word " * 900)
    press(phone, "Generate")
    assert phone.wait_for_selector("text=512 tokens").is_visible()
