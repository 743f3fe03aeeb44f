"""Take the screenshots of docs/web.md, with the embedded models and an installed Chromium.

python docs/web_screenshots.py
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from whence._util.defaults import METHOD
from whence.web.server import ServerOptions, serve_page
from whence.web.service import ExplanationService

IMAGES = Path(__file__).parent / "images"
METHODS = [METHOD, "gae", "input_x_gradient"]


def choose_methods(page: Page) -> None:
    box = page.get_by_label("Methods").locator("visible=true")
    for name in METHODS[1:]:
        box.click()
        box.fill(name)
        box.press("Enter")
    box.press("Escape")


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).locator("visible=true").click()


def explain_photo(page: Page) -> None:
    press(page, "Use the sample photo")
    page.wait_for_selector(".map[data-drawn]")
    choose_methods(page)
    press(page, "Explain")
    page.wait_for_function("document.querySelectorAll('.map[data-drawn]').length === 6")


def show_faithfulness(page: Page) -> None:
    explain_photo(page)
    press(page, "Is it faithful")
    press(page, "Remove parts")
    page.wait_for_selector(".curves[data-drawn] .plot path")
    page.locator(".curves").first.scroll_into_view_if_needed()


def show_heads(page: Page) -> None:
    explain_photo(page)
    press(page, "What do the heads attend to")
    press(page, "Show all heads")
    page.wait_for_selector(".heads[data-drawn] canvas")


def explain_text(page: Page) -> None:
    page.get_by_role("tab", name="Text").click()
    press(page, "Sample 1")
    page.wait_for_selector(".texts .words span")
    choose_methods(page)
    press(page, "Explain")
    page.wait_for_function("document.querySelectorAll('.texts .method').length === 3")


def explain_contrast(page: Page) -> None:
    press(page, "Use the sample photo")
    page.wait_for_selector(".map[data-drawn]")
    box = page.get_by_label("Rather than", exact=True).locator("visible=true")
    box.click()
    box.fill("dog")
    box.press("Enter")
    press(page, "Explain")
    page.wait_for_function("document.querySelectorAll('.map[data-drawn]').length === 1")


def generate(page: Page) -> None:
    page.get_by_role("tab", name="Language model").click()
    press(page, "Sample 2")
    page.wait_for_selector(".generation[data-drawn]")
    page.locator(".generated", has_text="Tom").first.click()


def contrast_word(page: Page) -> None:
    generate(page)
    press(page, "Why this word")
    token = page.get_by_label("Generated token")
    token.click()
    token.fill("13: Tom")
    token.press("Enter")
    page.wait_for_timeout(1500)
    other = page.get_by_label("Rather than").locator("visible=true")
    other.fill("Ben")
    other.press("Enter")
    press(page, "Explain the difference")
    page.wait_for_function("document.querySelectorAll('.generation[data-drawn]').length === 2")


def main() -> None:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    screenshots = {
        "web-light": (explain_photo, 1100, "light", None),
        "web-dark": (explain_text, 1100, "dark", None),
        "web-faithful": (show_faithfulness, 1100, "light", ".curves"),
        "web-heads": (show_heads, 1100, "dark", ".heads"),
        "web-phone": (explain_photo, 390, "dark", None),
        "web-contrast": (explain_contrast, 1100, "light", None),
        "web-language": (generate, 1100, "light", None),
        "web-language-dark": (contrast_word, 1100, "dark", None),
        "web-language-phone": (generate, 390, "light", None),
    }
    service = ExplanationService.load()
    with serve_page(service, ServerOptions()) as address, sync_playwright() as drivers:
        browser = drivers.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (show, width, scheme, selector) in screenshots.items():
            size = {"width": width, "height": 900}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto(address)
            show(page)
            page.mouse.move(0, 0)
            page.wait_for_timeout(800)
            path = IMAGES / f"{name}.png"
            if selector is None:
                page.screenshot(path=path, full_page=True)
            else:
                page.locator(selector).first.screenshot(path=path)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
