"""Make the pictures of docs/gallery.md by running the code that stands above each of them.

python scripts/gallery.py
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

from PIL import Image

import whence

PAGE = Path(__file__).parents[1] / "docs" / "gallery.md"
FOLDER = PAGE.parent / "images" / "gallery"
WIDTH = 960
CLIP = PAGE.parents[1] / "examples" / "shapes_clip"
PHOTO = Path(whence.__file__).parent / "demo" / "cat.jpg"


def keep_picture(name: str) -> None:
    """Keep a picture of the page; NAME.jpg is NAME.png at the width of a page, to be small."""
    if not name.endswith(".jpg"):
        shutil.copy(name, FOLDER / name)
        return
    picture = Image.open(Path(name).with_suffix(".png")).convert("RGB")
    picture.thumbnail((WIDTH, 4 * WIDTH), Image.Resampling.LANCZOS)
    picture.save(FOLDER / name, quality=90, optimize=True)


def main() -> None:
    """Run the page in a folder of its own, and keep the pictures that it shows."""
    text = PAGE.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    pictures = re.findall(r"\(images/gallery/([^)]+)\)", text)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(PHOTO, folder)
        shutil.copytree(CLIP, Path(folder) / CLIP.name)
        os.chdir(folder)
        exec(compile(code, str(PAGE), "exec"), {"__name__": "gallery"})
        FOLDER.mkdir(exist_ok=True)
        for name in pictures:
            keep_picture(name)
        os.chdir(PAGE.parent)
    print(*(FOLDER / name for name in pictures), sep="\n")


if __name__ == "__main__":
    main()
