"""Bundles that are saved on one tab and opened on another, in a headless Chromium."""

import pytest

from tests.web.browser import press

pytestmark = pytest.mark.slow


def open_files(page, tab):
    page.get_by_role("tab", name=tab, exact=True).click()
    page.get_by_role("tab", name="Files").locator("visible=true").click()


def download(page):
    page.locator("a[download]").locator("visible=true").first.wait_for()
    with page.expect_download() as download:
        page.locator("a[download]").locator("visible=true").first.click()
    return download.value.path().read_bytes()  # gone with the page


def drop(page, content):
    bench = page.locator(".workbench").locator("visible=true")
    bench.locator("input[type=file]").last.set_input_files(
        {"name": "whence.zip", "mimeType": "application/zip", "buffer": content}
    )


def test_a_bundle_opens_on_its_own_tab(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.set_default_timeout(60_000)
    page.goto(address)
    press(page, "Use the sample photo")
    page.wait_for_selector(".map[data-drawn]")
    scores = page.locator(".map").first.get_attribute("data-scores")
    open_files(page, "Photo")
    press(page, "Make a bundle: input, pictures, scores, settings")
    photo = download(page)
    page.get_by_role("tab", name="Language model").click()
    press(page, "Sample 1")
    page.wait_for_selector(".generation[data-drawn]")
    generated = page.locator(".generation").inner_text()
    open_files(page, "Language model")
    press(page, "Make a zip file")
    story = download(page)
    page.close()

    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.set_default_timeout(60_000)
    page.goto(address)
    open_files(page, "Text")
    drop(page, photo)
    page.locator(".map[data-drawn]").locator("visible=true").first.wait_for()
    assert page.locator(".map").first.get_attribute("data-scores") == scores
    open_files(page, "Text")
    drop(page, story)
    page.locator(".generation[data-drawn]").locator("visible=true").wait_for()
    assert page.locator(".generation").inner_text() == generated
    page.close()
