"""A figure of rectangles, lines of text and pictures, drawn as pixels or as SVG."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from math import ceil, floor
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from whence._util.files import FIGURES, check_ending, write_atomically
from whence._util.text import data_uri
from whence.errors import WhenceError
from whence.render.png import encode_photos

# Pixels for each unit of the figure in a file.
_FINE = 2.0
# More pixels than this are a mistake rather than a figure.
_MOST_PIXELS = 200_000_000
# Of a JPEG file, pixels in each direction.
_LARGEST_JPEG = 65_500
# How much wider than ours a reader's font may be.
_WIDER = 1.3
_FAMILY = "Aileron, 'Helvetica Neue', Helvetica, Arial, 'Noto Sans', sans-serif"


@dataclass(frozen=True)
class Rectangle:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    color: str
    radius: float = 0.0  # of its corners

    def paint(self, canvas: Image.Image, scale: float) -> None:
        """Draw it on a canvas of so many pixels for each unit."""
        x, y = self.x * scale, self.y * scale
        edges = (x, y, x + self.width * scale, y + self.height * scale)
        left, top, right, bottom = map(round, edges)
        if not (left < right and top < bottom):
            return
        if self.radius:
            place, radius = (left, top, right - 1, bottom - 1), self.radius * scale
            ImageDraw.Draw(canvas).rounded_rectangle(place, radius, self.color)
        else:
            canvas.paste(self.color, (left, top, right, bottom))

    def to_svg(self) -> str:
        """Its SVG element."""
        corners = f' rx="{self.radius:g}"' if self.radius else ""
        return f'<rect {_format_place(self)}{corners} fill="{self.color}"/>'


@dataclass(frozen=True)
class TextLine:
    """One line of text."""

    x: float
    y: float  # of the baseline
    text: str
    size: float
    color: str
    right: bool = False  # whether the text ends at x rather than starts there
    room: float | None = None  # where given, the text is not wider in any font
    upward: bool = False  # whether it is turned by a quarter, and read from below

    def paint(self, canvas: Image.Image, scale: float) -> None:
        """Draw it on a canvas of so many pixels for each unit."""
        if self.upward:
            self._paint_upward(canvas, scale)
            return
        x, y, anchor = self.x * scale, self.y * scale, "rs" if self.right else "ls"
        shares = x - floor(x), y - floor(y)
        mask, (left, top) = _draw_line(self.text, self.size * scale, anchor, *shares)
        left, top = floor(x) + left, floor(y) + top
        canvas.paste(self.color, (left, top, left + mask.width, top + mask.height), mask)

    def to_svg(self) -> str:
        """Its SVG element."""
        anchor = ' text-anchor="end"' if self.right else ""
        anchor += f' transform="rotate(-90 {self.x:g} {self.y:g})"' if self.upward else ""
        width = measure_text(self.text, self.size)
        # A reader's font may be wider than the one that the text was measured in.
        if self.room is not None and _WIDER * width > self.room:
            anchor += f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
        return (
            f'<text x="{self.x:g}" y="{self.y:g}" font-size="{self.size:g}" fill="{self.color}"'
            f"{anchor}>{escape(self.text)}</text>"
        )

    def _paint_upward(self, canvas: Image.Image, scale: float) -> None:
        size = self.size * scale
        length = ceil(measure_text(self.text, size)) + 2
        rise = ceil(size)
        line = Image.new("L", (length, 2 * rise))
        ImageDraw.Draw(line).text((0, rise), self.text, 255, _load_font(size), "ls")
        turned = line.transpose(Image.Transpose.ROTATE_90)
        corner = round(self.x * scale) - rise, round(self.y * scale) - (0 if self.right else length)
        canvas.paste(self.color, (*corner, corner[0] + 2 * rise, corner[1] + length), turned)


@dataclass(frozen=True)
class Picture:
    """A picture that is drawn when its size in pixels is known."""

    x: float
    y: float
    width: float
    height: float
    draw: Callable[[tuple[int, int]], Image.Image]
    description: str = ""
    is_photo: bool = False  # whether a JPEG holds it well

    def paint(self, canvas: Image.Image, scale: float) -> None:
        """Draw it on a canvas of so many pixels for each unit."""
        canvas.paste(self._draw_scaled(scale), (round(self.x * scale), round(self.y * scale)))

    def to_svg(self) -> str:
        """Its SVG element, which holds the pixels."""
        address = encode_uri(self._draw_scaled(_FINE), self.is_photo)
        return (
            f'<image {_format_place(self)} preserveAspectRatio="none" href="{address}">'
            f"<title>{escape(self.description)}</title></image>"
        )

    def _draw_scaled(self, scale: float) -> Image.Image:
        return self.draw(_scale_size(self, scale))


Shape = Rectangle | TextLine | Picture


@dataclass(repr=False)
class Figure:
    """A finished figure, ready to be shown or saved. Its units are pixels at scale 1."""

    width: float
    height: float
    background: str
    shapes: list[Shape] = field(default_factory=list)  # the lowest first

    def __repr__(self) -> str:
        """Its size; what it shows is seen by `to_image`, `to_svg` and `save`."""
        return f"Figure({self.width:.0f}\u00d7{self.height:.0f})"

    def to_image(self, scale: float = 1.0) -> Image.Image:
        """The figure as pixels; more of them with a larger scale.

        Raises:
            WhenceError: The scale is not a reasonable number above 0.
        """
        if not (scale > 0 and scale**2 * self.width * self.height <= _MOST_PIXELS):
            raise WhenceError(f"A figure cannot be drawn at scale {scale}.")
        canvas = Image.new("RGB", _scale_size(self, scale), self.background)
        for shape in self.shapes:
            shape.paint(canvas, scale)
        return canvas

    def to_svg(self) -> str:
        """The figure as an SVG that needs nothing outside itself: text stays text."""
        width, height = f"{self.width:g}", f"{self.height:g}"
        size = f'width="{width}" height="{height}"'
        view = f'viewBox="0 0 {width} {height}" font-family="{escape(_FAMILY)}"'
        shapes = "\n".join(shape.to_svg() for shape in self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view}>\n'
            f'<rect {size} fill="{self.background}"/>\n{shapes}\n</svg>\n'
        )

    def save(self, path: str | Path) -> None:
        """Write a .png or .jpg, at two pixels for each unit, or an .svg; whole or not at all.

        Raises:
            WhenceError: The name ends otherwise, the figure is too large for a .jpg, or the place
                cannot be written.
        """
        ending = check_ending(path, FIGURES)
        if ending == ".svg":
            content = self.to_svg().encode()
        else:
            content = self._choose_encoder(ending)(self.to_image(_FINE), 96 * _FINE)
        write_atomically(Path(path), content)

    def _choose_encoder(self, ending: str) -> Callable[[Image.Image, float], bytes]:
        if ending != ".png":
            return encode_jpeg
        has_photo = any(isinstance(one, Picture) and one.is_photo for one in self.shapes)
        return encode_photos if has_photo else encode_png

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        # Made narrower where the notebook is: a plain SVG would be cut off.
        return self.to_svg().replace("<svg ", '<svg style="max-width: 100%; height: auto" ', 1)


def measure_text(text: str, size: float) -> float:
    """The width of a line of text in units."""
    # Ideographs and emoji are as wide as high, but the font has none to measure.
    narrow = "".join(c for c in text if unicodedata.east_asian_width(c) not in "WF")
    # Measured large, as hinting rounds the width of small letters.
    return _measure_large(narrow) * size / 100 + (len(text) - len(narrow)) * size


def shorten(text: str, size: float, width: float) -> str:
    """The text, or as much of its beginning as fits the width, and an ellipsis."""
    if measure_text(text, size) <= width:
        return text
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if measure_text(text[:middle].rstrip() + "…", size) <= width:
            fits = middle
        else:
            too_long = middle
    return text[:fits].rstrip() + "…"


def wrap_text(text: str, size: float, width: float) -> list[str]:
    """The words of a text in lines that are no wider; a longer word ends in an ellipsis."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and measure_text(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(shorten(word, size, width))
    return lines


def encode_png(image: Image.Image, dpi: float = 96) -> bytes:
    """The content of a PNG file, which has so many pixels for an inch."""
    stream = io.BytesIO()
    image.save(stream, "PNG", dpi=(dpi, dpi), compress_level=4)
    return stream.getvalue()


def encode_jpeg(image: Image.Image, dpi: float = 96) -> bytes:
    """The content of a JPEG file: small and soon written, with letters that stay sharp.

    Raises:
        WhenceError: The picture has more pixels in width or height than a JPEG file can.
    """
    if max(image.size) > _LARGEST_JPEG:
        raise WhenceError(
            f"The figure has {image.width} x {image.height} pixels, and a JPEG file at most "
            f"{_LARGEST_JPEG} in each direction; save a .png or .svg."
        )
    stream = io.BytesIO()
    # All pixels keep their colour: where four share one, the edges of coloured letters blur.
    image.save(stream, "JPEG", quality=90, subsampling=0, dpi=(dpi, dpi))
    return stream.getvalue()


def encode_uri(image: Image.Image, is_photo: bool) -> str:
    """A picture as an address that a page can hold: a JPEG of a photo, which is small, or a PNG."""
    if not is_photo:
        return data_uri(encode_png(image), "image/png")
    return data_uri(encode_jpeg(image), "image/jpeg")


def _scale_size(shape: Picture | Figure, scale: float) -> tuple[int, int]:
    """Width and height in pixels."""
    return max(1, round(shape.width * scale)), max(1, round(shape.height * scale))


def _format_place(shape: Rectangle | Picture) -> str:
    return f'x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}"'


@lru_cache(maxsize=1024)
def _measure_large(text: str) -> float:
    return float(_load_font(100).getlength(text))


@lru_cache(maxsize=64)
def _draw_line(
    text: str, size: float, anchor: str, x: float, y: float
) -> tuple[Image.Image, tuple[int, int]]:
    """A line of text as a mask, and where its corner lies; many figures have the same lines.

    Args:
        text: The line.
        size: Of its letters, in pixels.
        anchor: Which point of the line lies at x and y, as Pillow names it.
        x: Of that point, from 0 to 1: a part of a pixel, which letters are moved by.
        y: The same, down.
    """
    font, room = _load_font(size), ceil(size)
    length = ceil(font.getlength(text)) + 2 * room
    start = length - room if anchor == "rs" else room
    mask = Image.new("L", (length, 3 * room))
    ImageDraw.Draw(mask).text((start + x, 2 * room + y), text, 255, font, anchor)
    left, top, right, bottom = mask.getbbox() or (0, 0, 1, 1)
    return mask.crop((left, top, right, bottom)), (left - start, top - 2 * room)


@lru_cache(maxsize=32)
def _load_font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)
