"""A page of rectangles, words and pictures, drawn as pixels or as SVG."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from whence._util.files import write_whole
from whence._util.text import data_uri
from whence.errors import WhenceError

# Pixels for each unit of the page, where a file must choose.
_FINE = 2.0
# More pixels than this are a mistake rather than a figure.
_MOST_PIXELS = 200_000_000
# How much wider than ours a reader's font may be.
_WIDER = 1.3
_FAMILY = "Aileron, 'Helvetica Neue', Helvetica, Arial, 'Noto Sans', sans-serif"


@dataclass(frozen=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    color: str


@dataclass(frozen=True)
class Words:
    """One line of text; y is its baseline. It ends at x if right, else it starts there.

    Where room is given, the text is not wider in any font.
    """

    x: float
    y: float
    text: str
    size: float
    color: str
    right: bool = False
    room: float | None = None


@dataclass(frozen=True)
class Picture:
    """A picture that is drawn when its size in pixels is known."""

    x: float
    y: float
    width: float
    height: float
    draw: Callable[[tuple[int, int]], Image.Image]
    about: str = ""


@dataclass
class Figure:
    """A finished figure, ready to be looked at or saved.

    Attributes:
        width: In units, which are pixels at scale 1.
        height: In the same units.
        background: Its colour.
        parts: What is on it, the lowest first.
    """

    width: float
    height: float
    background: str
    parts: list[Box | Words | Picture] = field(default_factory=list)

    def image(self, scale: float = 1.0) -> Image.Image:
        """The figure as pixels; more of them with a larger scale.

        Raises:
            WhenceError: The scale is not a reasonable number above 0.
        """
        if not (scale > 0 and scale**2 * self.width * self.height <= _MOST_PIXELS):
            raise WhenceError(f"A figure cannot be drawn at scale {scale}.")
        size = (_pixels(self.width * scale), _pixels(self.height * scale))
        canvas = Image.new("RGB", size, self.background)
        draw = ImageDraw.Draw(canvas)
        for part in self.parts:
            x, y = part.x * scale, part.y * scale
            if isinstance(part, Picture):
                size = (_pixels(part.width * scale), _pixels(part.height * scale))
                canvas.paste(part.draw(size), (round(x), round(y)))
            elif isinstance(part, Words):
                anchor = "rs" if part.right else "ls"
                draw.text((x, y), part.text, part.color, _font(part.size * scale), anchor)
            else:
                corner = (x + part.width * scale, y + part.height * scale)
                left, top, right, bottom = (round(edge) for edge in (x, y, *corner))
                if left < right and top < bottom:
                    draw.rectangle((left, top, right - 1, bottom - 1), part.color)
        return canvas

    def svg(self) -> str:
        """The figure as an SVG that needs nothing outside itself: text stays text."""
        width, height = f"{self.width:g}", f"{self.height:g}"
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="{escape(_FAMILY)}">',
            f'<rect width="{width}" height="{height}" fill="{self.background}"/>',
            *map(_as_svg, self.parts),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def save(self, path: str | Path) -> None:
        """Write a .png, at two pixels for each unit, or an .svg; whole or not at all.

        Raises:
            WhenceError: The name ends otherwise, or the place cannot be written.
        """
        suffix = Path(path).suffix.lower()
        if suffix == ".svg":
            content = self.svg().encode()
        elif suffix == ".png":
            content = encode_png(self.image(_FINE), dpi=96 * _FINE)
        else:
            raise WhenceError(f"'{path}' must end in .png or .svg.")
        write_whole(Path(path), content)

    def _repr_svg_(self) -> str:
        return self.svg()


def text_width(text: str, size: float) -> float:
    """The width of a line of text in units."""
    # Ideographs and emoji are as wide as high, but the font has none to measure.
    narrow = "".join(c for c in text if unicodedata.east_asian_width(c) not in "WF")
    # Measured large, as hinting rounds the width of small letters.
    return float(_font(100).getlength(narrow)) * size / 100 + (len(text) - len(narrow)) * size


def shortened(text: str, size: float, width: float) -> str:
    """The text, or as much of its beginning as fits the width, and an ellipsis."""
    if text_width(text, size) <= width:
        return text
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if text_width(text[:middle].rstrip() + "…", size) <= width:
            fits = middle
        else:
            too_long = middle
    return text[:fits].rstrip() + "…"


def _pixels(length: float) -> int:
    return max(1, round(length))


@lru_cache(maxsize=32)
def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


def encode_png(image: Image.Image, dpi: float = 96) -> bytes:
    """The content of a PNG file."""
    stream = io.BytesIO()
    # Photos hardly shrink further, but the usual level takes three times as long.
    image.save(stream, "PNG", dpi=(dpi, dpi), compress_level=4)
    return stream.getvalue()


def _as_svg(part: Box | Words | Picture) -> str:
    if isinstance(part, Words):
        anchor = ' text-anchor="end"' if part.right else ""
        width = text_width(part.text, part.size)
        # A reader's font may be wider than the one that the text was measured in.
        if part.room is not None and _WIDER * width > part.room:
            anchor += f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
        return (
            f'<text x="{part.x:g}" y="{part.y:g}" font-size="{part.size:g}" fill="{part.color}"'
            f"{anchor}>{escape(part.text)}</text>"
        )
    place = f'x="{part.x:g}" y="{part.y:g}" width="{part.width:g}" height="{part.height:g}"'
    if isinstance(part, Box):
        return f'<rect {place} fill="{part.color}"/>'
    picture = part.draw((_pixels(part.width * _FINE), _pixels(part.height * _FINE)))
    address = data_uri(encode_png(picture), "image/png")
    return (
        f'<image {place} preserveAspectRatio="none" href="{address}">'
        f"<title>{escape(part.about)}</title></image>"
    )
