"""Make the pictures of docs/generation.md, with the embedded language model and Chromium.

python docs/generation_screenshots.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from whence.models import load_language_model
from whence.render import format_generation_page

IMAGES = Path(__file__).parent / "images"
STORY = "Once upon a time, there was a girl named Lily. She had a cat named Tom. One day, Lily and"
PASSAGES = {
    "Sara": "Sara has a red ball.",
    "Tom": "Tom has a blue kite.",
    "Mia": "Mia has a green hat.",
    "Ben": "Ben has a big drum.",
    "Lily": "Lily has a small cake.",
}
QUESTION = " ".join(PASSAGES.values()) + " Ben plays with his"


def main() -> None:
    """Generate, draw and take the screenshots."""
    loaded = load_language_model(device="cpu")

    def generate(prompt: str, tokens: int):
        inputs = loaded.tokenizer([prompt], return_tensors="pt")
        return loaded.explainer.explain_generation(inputs, tokens)

    story, answer = generate(STORY, 24), generate(QUESTION, 3)
    story.plot().save(IMAGES / "generation.png")
    pages = {
        "generation-page": (format_generation_page(story, title="Lily and Tom"), 17, 760, "light"),
        "generation-phone": (format_generation_page(story, title="Lily and Tom"), 0, 390, "dark"),
        "generation-passages": (
            format_generation_page(answer, by=PASSAGES, title="What does Ben play with?"),
            *(0, 760, "light"),
        ),
    }
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as drivers, tempfile.TemporaryDirectory() as folder:
        browser = drivers.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (content, word, width, scheme) in pages.items():
            file = Path(folder) / f"{name}.html"
            file.write_text(content, encoding="utf-8")
            page = browser.new_page(viewport={"width": width, "height": 300}, color_scheme=scheme)
            page.goto(file.as_uri())
            page.locator(f'[data-row="{word}"]').hover()
            page.screenshot(path=IMAGES / f"{name}.png", full_page=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
