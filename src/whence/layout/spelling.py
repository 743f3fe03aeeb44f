"""Where tokens stand in the text that they spell, and which of them form a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Offset = tuple[int, int]
"""The first character of a token in a text, and the one after its last."""

# So many tokens before one are enough to tell how it is spelled after them.
_WINDOW = 4
# A decoder gives this for bytes that are only part of a character.
_INCOMPLETE = "\ufffd"
_APOSTROPHES = ("'", "\u2019")


class TextTokenizer(Protocol):
    """The part of a transformers tokenizer that names tokens and joins them to text."""

    unk_token: str
    all_special_tokens: list[str]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Convert ids to token strings."""

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join tokens to text."""


def spell_tokens(
    tokens: Sequence[str], tokenizer: TextTokenizer
) -> tuple[str, list[Offset | None]]:
    """Join tokens to a text, and find where each stands in it.

    Special tokens are no part of the text, and stand nowhere (None). Tokens that are bytes of one
    character stand where it does.
    """
    # An unknown word is a word, and so is a masked one.
    words = {tokenizer.unk_token, getattr(tokenizer, "mask_token", None)}
    special = set(tokenizer.all_special_tokens) - words
    text, offsets = "", list[Offset | None]()
    run: list[str] = []  # the tokens since the last special one
    spelled = 0  # how many of them are in the text
    for token in tokens:
        if token in special:
            run, spelled = [], 0
            offsets.append(None)
            continue
        run.append(token)
        if len(run) == 1 and text and not text[-1].isspace():
            text += "\n"  # a special token stands between
        piece = _spell_last(run, spelled, tokenizer)
        if not text:  # some tokenizers put a space before the first word
            piece = piece.removeprefix(" ")
        if piece.endswith(_INCOMPLETE) and len(run) - spelled < _WINDOW:
            offsets.append((len(text), len(text)))
            continue
        # The bytes before it, which are complete now, stand at the same place.
        place = (len(text), len(text) + len(piece))
        offsets[len(offsets) - (len(run) - spelled - 1) :] = [place] * (len(run) - spelled)
        text, spelled = text + piece, len(run)
    return text, offsets


def _spell_last(run: list[str], spelled: int, tokenizer: TextTokenizer) -> str:
    """The text that the tokens after the first `spelled` ones add to it."""
    start = max(0, spelled - _WINDOW)
    before = tokenizer.convert_tokens_to_string(run[start:spelled]) if spelled else ""
    after = tokenizer.convert_tokens_to_string(run[start:])
    if after.startswith(before):
        return after[len(before) :]
    # The token changed what stands before it, as a comma takes a space away.
    return tokenizer.convert_tokens_to_string(run[spelled:])


def number_words(text: str, offsets: Sequence[Offset | None]) -> list[int | None]:
    """Number the words of tokens: a space separates them, punctuation is a word of its own.

    A line break is a word, too; other spaces belong to the word after them. What stands nowhere in
    the text belongs to no word.
    """
    numbers: list[int | None] = []
    number, before = -1, None
    for offset in offsets:
        if offset is not None:
            number += before is None or _begins_word(text, before, offset)
        numbers.append(None if offset is None else number)
        before = offset
    return numbers


def _begins_word(text: str, before: Offset, offset: Offset) -> bool:
    """Whether a token is not of the same word as the one before it."""
    if offset == before and offset[0] < offset[1]:  # bytes of one character
        return False
    one, other = text[slice(*before)], text[slice(*offset)]
    if _has_line_break(one) or _has_line_break(other):
        return True
    if not one.strip():
        return False
    if text[before[1] - 1 : offset[0] + 1] != text[before[1] - 1 : offset[0] + 1].strip():
        return True
    return not (_has_letters(text, before) and _has_letters(text, offset))


def _has_line_break(piece: str) -> bool:
    return not piece.strip() and bool(set(piece) & set("\r\n"))


def _has_letters(text: str, offset: Offset) -> bool:
    """Whether a token is part of a word rather than punctuation, as the apostrophe of "don't"."""
    start, stop = offset
    around = text[max(0, start - 1) : start] + text[stop : stop + 1]
    if text[start:stop] in _APOSTROPHES and len(around) == 2:
        return around.isalnum()
    return any(character.isalnum() for character in text[start:stop])
