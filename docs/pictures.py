"""Make the pictures of the README, with the embedded models.

python docs/pictures.py
"""

import html
from pathlib import Path

from PIL import Image, ImageFont

import whence
from whence import Explanation, explain, render
from whence.render.colors import hex_of
from whence.render.facts import explained_class
from whence.render.words import shade, words_of

DEMO = Path(whence.__file__).parent / "demo"
IMAGES = Path(__file__).parent / "images"
SENTENCE = "The story is thin, but the acting is superb and the ending deeply moving."
SIZE = 22


def sentence_svg(explanation: Explanation) -> str:
    """Words on the colours of their scores, in one line."""
    font = ImageFont.load_default(SIZE)
    shapes, x = [], 12.0
    for word in words_of(explanation):
        width = font.getlength(word.text)
        color = hex_of(shade(word.share, "light"))
        shapes.append(
            f'<rect x="{x - 3:.1f}" y="10" width="{width + 6:.1f}" height="32" rx="4" '
            f'fill="{color}"/><text x="{x:.1f}" y="33" textLength="{width:.1f}" '
            f'lengthAdjust="spacingAndGlyphs">{html.escape(word.text)}</text>'
        )
        x += width + (font.getlength(" ") if word.space else 0) + 2
    told = explained_class(explanation, 0, 0)
    answer = f"{told.name} {told.percent}"
    width = x + font.getlength(answer) + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="52" '
        f'font-family="sans-serif" font-size="{SIZE}">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(shapes)}'
        f'<text x="{x + 12:.1f}" y="33" fill="#555">{html.escape(answer)}</text></svg>\n'
    )


def main() -> None:
    """Write the pictures."""
    photo = Image.open(DEMO / "cat.jpg")
    figure = render.figure(photo, explain(photo, classes=["cat", "dog"]))
    figure.image(1.0).save(IMAGES / "cat.png", optimize=True)
    (IMAGES / "sentence.svg").write_text(sentence_svg(explain(SENTENCE)), encoding="utf-8")
    print(f"{IMAGES / 'cat.png'}\n{IMAGES / 'sentence.svg'}")


if __name__ == "__main__":
    main()
