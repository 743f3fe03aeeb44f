"""Words with their scores, and the colours that keep them readable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from whence._util.text import to_printable
from whence.errors import WhenceError
from whence.render.facts import explained_class
from whence.render.overlay import as_scores, is_signed, relative
from whence.render.shades import LEVELS
from whence.render.spacing import spaces_behind

if TYPE_CHECKING:
    from whence.explanation import Explanation


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
        pairs = [(to_printable(word), s) for word, s in explanation.words(sample, target)]
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
