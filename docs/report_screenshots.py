"""Take the screenshots of the report, with photos and texts that come with the library.

python docs/report_screenshots.py  # needs playwright and chromium
"""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image, ImageFilter, ImageOps
from playwright.sync_api import Browser, sync_playwright

import whence
from whence.inputs import expand
from whence.methods import parse_methods
from whence.pipeline import ExplainSettings
from whence.report.build import ReportRequest, build_report

IMAGES = Path(__file__).parent / "images"
REVIEWS = (
    "The story is thin, but the acting is superb and the ending deeply moving.",
    "An unwatchable mess, not worth a minute of your time.",
    "Two hours of fine actors with nothing to say.",
    "I laughed, I cried, and I would see it again tomorrow.",
    "Not bad, but not good either.",
    "A gripping thriller that never lets go.",
    "The jokes fall flat and the plot makes no sense.",
    "Slow, sad and beautiful.",
)


def save_photos(folder: Path) -> None:
    """Save variants of the sample photo, and a damaged file."""
    folder.mkdir()
    cat = Image.open(Path(whence.__file__).parent / "demo" / "cat.jpg").convert("RGB")
    width, height = cat.size
    variants = {
        "cat": cat,
        "mirrored": ImageOps.mirror(cat),
        "upside down": ImageOps.flip(cat),
        "left half": cat.crop((0, 0, width // 2, height)),
        "right half": cat.crop((width // 2, 0, width, height)),
        "blurred": cat.filter(ImageFilter.GaussianBlur(width / 60)),
        "grey": ImageOps.grayscale(cat),
    }
    for name, image in variants.items():
        image.save(folder / f"{name}.jpg", quality=90)
    (folder / "damaged.jpg").write_bytes((folder / "cat.jpg").read_bytes()[:3000])


def write_report(source: Path, out: Path, methods: str, title: str) -> Path:
    """Write a report on the inputs of a folder or a table."""
    how = ExplainSettings(methods=tuple(parse_methods(methods)))
    build_report(ReportRequest(how, out, title), expand([str(source)]))
    return out


def take_screenshot(
    browser: Browser, page: Path, name: str, width: int, height: int, scheme: str
) -> None:
    """Take a screenshot of the top of a page."""
    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab.goto(page.as_uri())
    tab.wait_for_timeout(300)
    image = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    image.save(IMAGES / name, quality=86, optimize=True, subsampling=0)
    tab.close()


def main() -> None:
    """Take all screenshots."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        save_photos(folder / "photos")
        (folder / "reviews.csv").write_text("\n".join(["text", *(f'"{r}"' for r in REVIEWS)]))
        of_photos = write_report(
            folder / "photos", folder / "p.html", "gae,attnlrp", "One cat, eight photos"
        )
        of_texts = write_report(folder / "reviews.csv", folder / "t.html", "attnlrp", "Reviews")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        take_screenshot(browser, of_photos, "report.jpg", 1280, 900, "light")
        take_screenshot(browser, of_texts, "report-texts.jpg", 1280, 720, "dark")
        take_screenshot(browser, of_photos, "report-phone.jpg", 390, 844, "dark")
        browser.close()


if __name__ == "__main__":
    main()
