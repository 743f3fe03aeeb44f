"""The words of an explained text with their scores, and the spaces between them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from whence._util.text import to_printable
from whence.errors import WhenceError
from whence.render.overlay import is_signed, scale_to_largest, to_finite_array
from whence.render.shades import LEVELS
from whence.render.strengths import list_strengths

if TYPE_CHECKING:
    from whence.explanation import ExplainedClass, Explanation

_NO_SPACE_BEFORE = set(".,!?;:)]}%…»”،؛؟")
_NO_SPACE_AFTER = set("([{«“¿¡$€£#@")
_APOSTROPHES = ("'", "\u2019")
_ENDINGS = {"s", "t", "d", "m", "re", "ve", "ll"}
# Beginnings of the Unicode names of scripts that write without spaces.
_UNSPACED = tuple("CJK IDEOGRAPHIC HIRAGANA KATAKANA THAI LAO KHMER MYANMAR FULLWIDTH".split())


@dataclass(frozen=True)
class Word:
    """A word with its score."""

    text: str  # without control characters
    score: float
    share: float  # the score relative to the largest absolute one, from -1 to 1
    space: bool  # whether a space follows
    strength: float = 1.0  # of its colour: less for a class that the model doubts

    @property
    def shade(self) -> float:
        """How strongly it is coloured, from -1 to 1."""
        return self.share * self.strength

    @property
    def level(self) -> int:
        """The shade, from -LEVELS to LEVELS."""
        return round(self.shade * LEVELS)

    @property
    def description(self) -> str:
        """The score in words, to show on hovering."""
        return f"{self.share:+.2f} of the largest (score {self.score:.4g})"


def list_words(explanation: Explanation, sample: int = 0, target: int = 0) -> list[Word]:
    """The words of a text, or its token positions where the tokens are not known."""
    if explanation.picture_grid is not None:
        raise WhenceError("This explanation is of images, which have no words; see .heatmap().")
    scores = explanation.get_class(sample, target).scores
    if explanation.tokens is None:
        pairs = [(f"#{position}", float(score)) for position, score in enumerate(scores)]
        spaces = [True] * len(pairs)
    else:
        pairs = [(to_label(word), s) for word, s in explanation.words(sample, target)]
        spaces = find_spaces([text for text, _ in pairs])
    return _color_words(pairs, spaces, list_strengths(explanation, sample)[target])


def make_words(pairs: Sequence[tuple[str, float]], strength: float = 1.0) -> list[Word]:
    """Words of a text with their scores, as a reader sees them.

    Args:
        pairs: Each word and its score.
        strength: Of all colours, from 0 to 1.
    """
    labels = [(to_label(word), score) for word, score in pairs]
    return _color_words(labels, find_spaces([text for text, _ in labels]), strength)


def _color_words(
    pairs: Sequence[tuple[str, float]], spaces: Sequence[bool], strength: float
) -> list[Word]:
    if not pairs:
        return []
    shares = scale_to_largest(to_finite_array([score for _, score in pairs]))
    return [
        Word(text, score, float(share), space, strength)
        for (text, score), share, space in zip(pairs, shares, spaces, strict=True)
    ]


def is_line_break(text: str) -> bool:
    """Whether a text is nothing but spaces with a line break among them."""
    return text.isspace() and bool(set(text) & set("\r\n"))


def to_label(text: str) -> str:
    """A text to stand in one line, without control characters; a line break is a sign."""
    return "↵" if is_line_break(text) else to_printable(text)


def list_class_words(
    explanation: Explanation, sample: int
) -> list[tuple[ExplainedClass, list[Word]]]:
    """The explained classes of a text, each with the words and their scores."""
    classes = explanation.classes(sample)
    return [(one, list_words(explanation, sample, target)) for target, one in enumerate(classes)]


def has_negative_scores(explanation: Explanation) -> bool:
    """Whether any sample has scores below 0."""
    return is_signed(to_finite_array(explanation.scores))


def find_spaces(words: Sequence[str]) -> list[bool]:
    """For each word that a tokenizer split off, whether a space follows it as people write."""
    spaces = [_is_space_between(one, next_) for one, next_ in pairwise(words)]
    for at, (before, word, after) in enumerate(zip(words, words[1:], words[2:], strict=False)):
        # The apostrophe of "don't", not that of a quotation.
        if word in _APOSTROPHES and after.lower() in _ENDINGS and before.isalpha():
            spaces[at] = spaces[at + 1] = False
    return [*spaces, False][: len(words)]


def _is_space_between(one: str, other: str) -> bool:
    if not one or not other or other[0] in _NO_SPACE_BEFORE or one[-1] in _NO_SPACE_AFTER:
        return False
    if other[0] in _APOSTROPHES and other[1:].lower() in _ENDINGS:
        return False
    return not (_is_unspaced(one[-1]) and _is_unspaced(other[0]))


def _is_unspaced(character: str) -> bool:
    return unicodedata.name(character, "").startswith(_UNSPACED)
