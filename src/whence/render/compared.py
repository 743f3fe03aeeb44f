"""The texts that inputs are compared with: their coloured words, and how well each fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from whence._util.text import to_printable
from whence.explanation import Fit, PairExplanation
from whence.render.colors import Theme
from whence.render.drawing import Shape, TextLine
from whence.render.panels import CAPTION, SMALL, Caption, draw_caption
from whence.render.strengths import list_strengths
from whence.render.words import Word, make_words

if TYPE_CHECKING:
    from whence.explanation import Explanation

# More texts than these are counted rather than named.
_MOST_TEXTS = 6


def list_compared_words(explanation: Explanation, sample: int, target: int) -> list[Word]:
    """The coloured words of the text that an input is compared with; none where it is not."""
    if not isinstance(explanation, PairExplanation):
        return []
    strength = list_strengths(explanation, sample)[target]
    return make_words(explanation.word_scores[sample][target], strength)


def list_shown_fits(explanation: Explanation, sample: int) -> tuple[list[Fit], int]:
    """The texts that fit an input best, and how many more there are; none where one says it all."""
    fits = explanation.list_fits(sample) if isinstance(explanation, PairExplanation) else []
    if len(fits) < 2 and fits:
        return [], 0
    shown = [one._replace(text=to_printable(one.text)) for one in fits[:_MOST_TEXTS]]
    return shown, len(fits) - len(shown)


def format_fits(explanation: Explanation, sample: int = 0) -> str:
    """How well the texts fit an input in one line, the best first; empty where nothing does."""
    shown, more = list_shown_fits(explanation, sample)
    parts = [f"{one.text} {one.label}" for one in shown]
    return " · ".join([*parts, f"and {more} more"] if more else parts)


def draw_fits(
    fits: Sequence[Fit], more: int, room: float, look: Theme
) -> tuple[list[Shape], float]:
    """Draw texts below each other with how well they fit, from (0, 0) on; also their height."""
    shapes, y = list[Shape](), 0.0
    for one in fits:
        chance = one.value if one.measure == "probability" else None
        shapes += draw_caption(Caption(one.text, one.label, chance), 0, y, room, look)
        y += CAPTION if chance is not None else 0.7 * CAPTION
    if more:
        shapes.append(TextLine(0, y + 12, f"and {more} more", SMALL, look.muted, room=room))
        y += 18
    return shapes, y


def list_texts(explanation: PairExplanation, sample: int) -> list[dict[str, Any]]:
    """All texts that an input is compared with, and how well each fits, for JSON."""
    values = [None if math.isnan(one) else one for one in explanation.fits[sample].tolist()]
    pairs = zip(explanation.texts, values, strict=True)
    return [{"text": text, explanation.measure: value} for text, value in pairs]


def list_text_words(explanation: PairExplanation, sample: int) -> list[list[dict[str, Any]]]:
    """The words of each explained text with their scores, for JSON."""
    return [
        [{"word": word, "score": score} for word, score in words]
        for words in explanation.word_scores[sample]
    ]
