"""Take the screenshots of docs/web.md, with the embedded models and an installed Chromium.

python docs/web_screenshots.py
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from whence.web.server import ServerOptions, serve_page
from whence.web.service import ExplanationService

IMAGES = Path(__file__).parent / "images"
DESKTOP, PHONE = (1280, 720), (390, 844)


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).locator("visible=true").click()


def open_view(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).locator("visible=true").click()


def choose_methods(page: Page, names: list[str]) -> None:
    for name in names:
        card = page.locator(".cards label", has=page.locator(f"b:text-is('{name}')"))
        card.locator("visible=true").click()


def explain_photo(page: Page) -> None:
    press(page, "Use the sample photo")
    page.wait_for_selector(".hero .map[data-drawn]")


def explain_by_three(page: Page) -> None:
    explain_photo(page)
    choose_methods(page, ["tiba", "gae"])
    press(page, "Explain")
    page.wait_for_function("document.querySelectorAll('.cells .map[data-drawn]').length === 6")


def compare(page: Page) -> None:
    explain_photo(page)
    open_view(page, "Compare")
    page.wait_for_selector(".curves[data-drawn] .plot path")


def show_heads(page: Page) -> None:
    explain_photo(page)
    open_view(page, "Heads")
    page.wait_for_selector(".heads[data-drawn] canvas")


def explain_text(page: Page) -> None:
    open_view(page, "Text")
    press(page, "Sample 1")
    page.wait_for_selector(".texts .words span")
    choose_methods(page, ["attnlrp", "tiba"])
    press(page, "Explain")
    page.wait_for_function("document.querySelectorAll('.texts .method').length === 3")


def explain_contrast(page: Page) -> None:
    explain_photo(page)
    box = page.get_by_role("combobox", name="Rather than").locator("visible=true")
    box.click()
    box.fill("dog")
    box.press("Enter")
    press(page, "Explain")
    page.wait_for_function("document.querySelectorAll('.cells .map[data-drawn]').length === 3")


def open_settings(page: Page) -> None:
    explain_photo(page)
    press(page, "Photo and settings")


def generate(page: Page) -> None:
    open_view(page, "Language model")
    press(page, "Sample 2")
    page.wait_for_selector(".generation[data-drawn]")
    page.locator(".generated", has_text="Tom").first.click()


def contrast_word(page: Page) -> None:
    generate(page)
    open_view(page, "Why not another word")
    token = page.get_by_label("Generated token")
    token.click()
    token.fill("13: Tom")
    token.press("Enter")
    page.wait_for_timeout(1500)
    other = page.get_by_role("combobox", name="Rather than").locator("visible=true")
    other.fill("Ben")
    other.press("Enter")
    press(page, "Explain the difference")
    page.get_by_role("heading", name="Tom rather than Ben").wait_for()


SCREENSHOTS = {
    "web-light": (explain_by_three, DESKTOP, "light"),
    "web-dark": (explain_text, DESKTOP, "dark"),
    "web-contrast": (explain_contrast, DESKTOP, "light"),
    "web-faithful": (compare, DESKTOP, "light"),
    "web-heads": (show_heads, DESKTOP, "dark"),
    "web-language": (generate, DESKTOP, "light"),
    "web-language-dark": (contrast_word, DESKTOP, "dark"),
    "web-phone": (explain_photo, PHONE, "dark"),
    "web-phone-settings": (open_settings, PHONE, "light"),
    "web-language-phone": (generate, PHONE, "light"),
}


def main() -> None:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    service = ExplanationService.load()
    with serve_page(service, ServerOptions()) as address, sync_playwright() as drivers:
        browser = drivers.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (show, (width, height), scheme) in SCREENSHOTS.items():
            size = {"width": width, "height": height}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto(address)
            show(page)
            page.mouse.move(0, 0)
            page.wait_for_timeout(1000)
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
