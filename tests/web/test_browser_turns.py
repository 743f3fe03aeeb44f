"""Two visitors at once, and work that is cancelled, in a headless Chromium."""

import re

import pytest

from tests.web.browser import press

STEPS = re.compile(r"[1-9]\d*/1000")


@pytest.fixture
def visitors(browser, address):
    """Pages of two visitors, just opened."""
    contexts = [browser.new_context(viewport={"width": 1280, "height": 720}) for _ in range(2)]
    pages = [context.new_page() for context in contexts]
    for page in pages:
        page.set_default_timeout(60_000)
        page.goto(address)
    yield pages
    for context in contexts:
        context.close()


def start_slow_work(page):
    """Choose a method of a thousand passes, use the sample, and wait until the first are done."""
    page.locator("button[data-cards]").locator("visible=true").click()
    page.locator(".cards label", has_text="rise").locator("visible=true").click()
    press(page, "Use the sample photo")
    page.locator(".stage .wrap").filter(has_text=STEPS).locator("visible=true").first.wait_for()


def test_a_quick_visitor_is_served_while_another_waits_and_cancels(visitors):
    slow, quick = visitors
    start_slow_work(slow)
    press(quick, "Use the sample photo")
    quick.wait_for_selector(".map[data-drawn]")
    # The slow visitor still waits, and gives up.
    assert slow.locator(".map").count() == 0
    press(slow, "Cancel")
    slow.get_by_text("Cancelled").wait_for()
    assert slow.locator(".map").count() == 0
    # The page works as before.
    slow.locator(".cards label", has_text="rise").locator("visible=true").click()
    press(slow, "Use the sample photo")
    slow.wait_for_selector(".map[data-drawn]")


def test_work_ends_when_its_visitor_leaves(visitors):
    gone, other = visitors
    start_slow_work(gone)
    gone.context.close()
    # Slow work of someone else would have to wait for a thousand passes.
    other.get_by_role("tab", name="Text").click()
    other.locator("button[data-cards]").locator("visible=true").click()
    other.locator(".cards label", has_text="occlusion").locator("visible=true").click()
    press(other, "Sample 1")
    other.wait_for_selector(".whence.texts")
    assert "occlusion" in other.locator(".whence.texts").inner_text()
