"""Where a space stands between words that a tokenizer took apart."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

_NO_SPACE_BEFORE = set(".,!?;:)]}%…»”،؛؟")
_NO_SPACE_BEHIND = set("([{«“¿¡$€£#@")
_APOSTROPHES = ("'", "\u2019")
_ENDINGS = {"s", "t", "d", "m", "re", "ve", "ll"}
_UNSPACED = (
    "CJK",
    "IDEOGRAPHIC",
    "HIRAGANA",
    "KATAKANA",
    "THAI",
    "LAO",
    "KHMER",
    "MYANMAR",
    "FULLWIDTH",
)


def spaces_behind(words: Sequence[str]) -> list[bool]:
    """For each word, whether a space follows it as people write."""
    spaces = [_is_space_between(one, next_) for one, next_ in pairwise(words)]
    for at in range(1, len(words) - 1):
        # The apostrophe of "don't", not that of a quotation.
        if (
            words[at] in _APOSTROPHES
            and words[at + 1].lower() in _ENDINGS
            and words[at - 1].isalpha()
        ):
            spaces[at - 1] = spaces[at] = False
    return [*spaces, False][: len(words)]


def _is_space_between(one: str, other: str) -> bool:
    if not one or not other or other[0] in _NO_SPACE_BEFORE or one[-1] in _NO_SPACE_BEHIND:
        return False
    if other[0] in _APOSTROPHES and other[1:].lower() in _ENDINGS:
        return False
    return not (_is_unspaced(one[-1]) and _is_unspaced(other[0]))


def _is_unspaced(character: str) -> bool:
    return unicodedata.name(character, "").startswith(_UNSPACED)
