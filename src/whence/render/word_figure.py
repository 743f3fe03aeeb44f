"""A figure of an explained text: its words on the colours of their scores, once for each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whence.errors import WhenceError
from whence.render.colors import Theme, get_theme, to_hex
from whence.render.compared import draw_fits, list_compared_words, list_shown_fits
from whence.render.drawing import Figure, Rectangle, Shape, TextLine, measure_text, shorten
from whence.render.panels import (
    CAPTION,
    GAP,
    MARGIN,
    TITLE,
    Caption,
    Legend,
    WordColors,
    describe_scale,
    draw_caption,
    draw_legend,
    draw_title,
    format_origin,
    move,
)
from whence.render.shades import shade_word
from whence.render.strengths import list_strengths
from whence.render.words import Word, has_negative_scores, list_class_words

if TYPE_CHECKING:
    from whence.explanation import Explanation

_WIDTH = 760.0
_SIZE, _LINE, _PAD = 16.0, 29.0, 2.0
# Between a text and the one that it is compared with.
_BETWEEN = 6.0
# More words than this are a page to read rather than a figure.
_MOST_WORDS = 2000


def draw_words(
    explanation: Explanation, sample: int = 0, *, theme: str = "light", title: str | None = None
) -> Figure:
    """Draw the words of a text on the colours of their scores, once for each class.

    Raises:
        WhenceError: The explanation is of images, the text is too long, or there is no such sample.
    """
    look, room = get_theme(theme), _WIDTH - 2 * MARGIN
    page, y = Figure(_WIDTH, 0, look.background), MARGIN + (TITLE + GAP if title else 0)
    page.shapes += draw_title(title, _WIDTH, look)
    for number, (one, words) in enumerate(list_class_words(explanation, sample)):
        page.shapes += draw_caption(Caption.from_class(one), MARGIN, y, room, look)
        y += CAPTION
        compared = list_compared_words(explanation, sample, number)
        for listed in (words, compared) if compared else (words,):
            shapes, height = lay_out_words(listed, room, theme, look)
            page.shapes += move(shapes, MARGIN, y)
            y += height + (GAP if listed is compared or not compared else _BETWEEN)
    fits, more = list_shown_fits(explanation, sample)
    if len(fits) > len(explanation.classes(sample)):
        shapes, height = draw_fits(fits, more, room, look)
        page.shapes += move(shapes, MARGIN, y)
        y += height + GAP
    strengths = list_strengths(explanation, sample)
    legend, height = draw_legend(make_word_legend([explanation], strengths, theme), _WIDTH, look)
    page.shapes += move(legend, 0, y)
    page.height = y + height
    return page


def lay_out_words(
    words: Sequence[Word], room: float, theme: str, look: Theme
) -> tuple[list[Shape], float]:
    """Words in lines that are no wider than the room, from (0, 0) on.

    Returns:
        The shapes, and their height.

    Raises:
        WhenceError: There are too many words for a figure.
    """
    if len(words) > _MOST_WORDS:
        raise WhenceError(
            f"A figure of {len(words):,} words cannot be read; save a page, with a name that "
            f"ends in .html."
        )
    grounds, texts = list[Shape](), list[Shape]()
    x, line, space = 0.0, 0, measure_text(" ", _SIZE) + 1
    for word in words:
        text = shorten(word.text, _SIZE, room - 2 * _PAD)
        width = measure_text(text, _SIZE)
        if x and x + width + 2 * _PAD > room:
            x, line = 0.0, line + 1
        y, height = line * _LINE, _LINE - 4
        if word.level:
            color = to_hex(shade_word(word.shade, theme))
            grounds.append(Rectangle(x, y, width + 2 * _PAD, height, color, radius=3))
        texts.append(TextLine(x + _PAD, y + 0.68 * height, text, _SIZE, look.ink, room=width))
        x += width + (space if word.space else 1)
    return [*grounds, *texts], (line + 1) * _LINE


def make_word_legend(
    explanations: Sequence[Explanation], strengths: Sequence[float], theme: str
) -> Legend:
    """What the colours of words mean."""
    signed = any(map(has_negative_scores, explanations))
    cosines = any(getattr(one, "measure", "") == "cosine" for one in explanations)
    named = ("text", "a text that is less alike") if cosines else ("class",)
    note = describe_scale(strengths, [True], *named)
    return Legend([WordColors(theme, signed)], note, format_origin(explanations))
