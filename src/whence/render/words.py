"""Words with their scores, and the colours that keep them readable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import WhenceError
from whence.render.colors import Bytes, as_bytes, lab_to_srgb, lch_to_lab, srgb_to_lab
from whence.render.facts import explained_class, printable
from whence.render.overlay import as_scores, is_signed, relative
from whence.render.spacing import spaces_behind
from whence.render.themes import THEMES

if TYPE_CHECKING:
    from whence.explanation import Explanation

# Shades on each side of 0. Finer ones cannot be told apart.
LEVELS = 20
_ORANGE, _BLUE = 55.0, 255.0
# Lightness and chroma of the strongest shade. The text stays the theme's ink, so these bound the
# contrast: at least 4.5 to 1 at every shade.
_STRONGEST = {"light": (0.76, 0.135), "dark": (0.53, 0.130)}
# A terminal's background is unknown: its shades keep one lightness, on which black can be read.
_TERMINAL = (0.70, 0.150)
TERMINAL_INK = np.array([0, 0, 0], dtype=np.uint8)


@dataclass(frozen=True)
class Word:
    """A word to be shown.

    Attributes:
        text: Without control characters.
        score: As it was computed.
        share: The score relative to the largest absolute one, from -1 to 1.
        space: Whether a space follows.
    """

    text: str
    score: float
    share: float
    space: bool

    @property
    def level(self) -> int:
        """The shade, from -LEVELS to LEVELS."""
        return round(self.share * LEVELS)


def words_of(explanation: Explanation, sample: int = 0, target: int = 0) -> list[Word]:
    """The words of a text, or its token positions where the tokens are not known.

    Raises:
        WhenceError: The explanation is of images, there is no such sample or class, or its scores
            are not finite.
    """
    if explanation.grid is not None:
        raise WhenceError("This explanation is of images, which have no words; see .heatmap().")
    scores = explained_class(explanation, sample, target).scores
    if explanation.tokens is None:
        pairs = [(f"#{position}", float(score)) for position, score in enumerate(scores)]
    else:
        pairs = [(printable(word), s) for word, s in explanation.words(sample, target)]
    values = as_scores([score for _, score in pairs])
    spaces = spaces_behind([text for text, _ in pairs])
    if explanation.tokens is None:
        spaces = [True] * len(pairs)
    return [
        Word(text, score, float(share), space)
        for (text, score), share, space in zip(pairs, relative(values), spaces, strict=True)
    ]


def any_signed(explanation: Explanation) -> bool:
    """Whether any sample has scores below 0."""
    return is_signed(as_scores(explanation.scores))


def shade(share: float, theme: str) -> Bytes:
    """The background of a word whose relative score is share, in the "light" or "dark" theme.

    It runs from the page's background to orange for, or blue against.
    """
    background = THEMES[theme].background.removeprefix("#")
    start = srgb_to_lab(np.frombuffer(bytes.fromhex(background), np.uint8) / 255)
    end = lch_to_lab((*_STRONGEST[theme], _ORANGE if share >= 0 else _BLUE))
    return as_bytes(lab_to_srgb(start + min(abs(share), 1.0) * (end - start)))


def terminal_shade(share: float) -> Bytes:
    """The background of a word on a terminal: from grey to orange for, or blue against."""
    lightness, chroma = _TERMINAL
    hue = _ORANGE if share >= 0 else _BLUE
    return as_bytes(lab_to_srgb(lch_to_lab((lightness, chroma * min(abs(share), 1.0), hue))))
