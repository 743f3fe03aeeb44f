"""Coloured words and heatmaps for a terminal, as text of rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from rich.color import Color
from rich.style import Style
from rich.text import Text

from whence.render.colors import Bytes, Floats
from whence.render.compared import list_compared_words
from whence.render.overlay import blend, draw_map, fit_size, prepare_map, to_rgb, upsample
from whence.render.shades import TERMINAL_INK, shade_terminal_word
from whence.render.words import Word, list_words

if TYPE_CHECKING:
    from whence.explanation import ExplainedClass, Explanation

# The longer side of a picture, in half blocks.
_BLOCKS = 36
# Words below this share are left plain, so that the text does not turn grey.
_PLAIN = 0.1
# Without colours, strength is shown by shade, and evidence against by other signs.
_FOR, _AGAINST = " ░▒▓█", " .:-="


def format_terminal_text(explanation: Explanation, sample: int = 0, target: int = 0) -> Text:
    """The coloured words of one sample and class for a terminal; the strongest are bold.

    Raises:
        WhenceError: The explanation is of images, or there is no such sample or class.
    """
    return _color_words(list_words(explanation, sample, target))


def format_compared(explanation: Explanation, sample: int = 0, target: int = 0) -> Text:
    """The coloured words of the text that an input is compared with; empty where it is not."""
    return _color_words(list_compared_words(explanation, sample, target))


def _color_words(words: Sequence[Word]) -> Text:
    text = Text()
    for word in words:
        text.append(word.text, style_share(word.shade))
        text.append(" " if word.space else "")
    return text


def style_share(share: float) -> Style | None:
    """The style of a word of this share of the largest score; None for words that stay plain."""
    if abs(share) < _PLAIN:
        return None
    ground = _to_color(shade_terminal_word(share))
    # Bold shows strength where there is no colour.
    return Style(color=_to_color(TERMINAL_INK), bgcolor=ground, bold=abs(share) >= 0.5)


def format_heading(explained: ExplainedClass) -> Text:
    """The name of an explained class and its probability."""
    return Text.assemble((explained.name, "bold"), f"  {explained.percent}".rstrip())


def draw_heatmap(
    scores: Floats,
    shape: tuple[int, int],
    image: Image.Image | None,
    has_colors: bool,
    strength: float = 1.0,
) -> Text:
    """A heatmap in half blocks, two pixels to a character; in shades where there is no colour.

    `scores` are (rows, columns); `shape` is height and width of what is shown.
    """
    shares, colors = prepare_map(scores)
    size = _fit_blocks(shape)
    if not has_colors:
        return _shade(upsample(shares, size))
    if image is None:
        return _color_blocks(np.asarray(draw_map(shares, colors, size, strength)))
    photo = to_rgb(image).resize(size, Image.Resampling.LANCZOS)
    return _color_blocks(np.asarray(blend(photo, shares, colors, 0.6, strength)))


def draw_image(image: Image.Image, has_colors: bool) -> Text:
    """Any picture in half blocks, two pixels to a character; in shades where there is no colour."""
    size = _fit_blocks((image.height, image.width))
    small = to_rgb(image).resize(size, Image.Resampling.LANCZOS)
    if has_colors:
        return _color_blocks(np.asarray(small))
    return _shade(np.asarray(small.convert("L"), dtype=np.float32) / 255)


def _fit_blocks(shape: tuple[int, int]) -> tuple[int, int]:
    width, height = fit_size(shape, _BLOCKS)
    return width, height + height % 2


def _color_blocks(pixels: Bytes) -> Text:
    """Pixels, (an even height, width, 3), as coloured half blocks."""
    text = Text(no_wrap=True)
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for one, other in zip(upper, lower, strict=True):
            text.append("▀", Style(color=_to_color(one), bgcolor=_to_color(other)))
        text.append("\n")
    text.rstrip()
    return text


def _shade(values: Floats) -> Text:
    """Values from -1 to 1, (an even height, width), as signs."""
    rows = (values[::2] + values[1::2]) / 2
    return Text("\n".join("".join(map(_choose_sign, row)) for row in rows))


def _choose_sign(value: float) -> str:
    signs = _FOR if value >= 0 else _AGAINST
    return signs[round(abs(value) * (len(signs) - 1))]


def _to_color(rgb: Bytes) -> Color:
    return Color.from_rgb(*map(int, rgb))
