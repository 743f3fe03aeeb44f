"""The tokens of a text as strings, and the sum of scores over each word's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

# Marks of tokenizers: WordPiece, byte-level BPE and SentencePiece; then the end of a word.
_PREFIX_MARKS = ("##", "Ġ", "▁")
_SUFFIX_MARK = "</w>"


class TextTokenizer(Protocol):
    """The part of a transformers tokenizer that names tokens and joins them to text."""

    unk_token: str
    all_special_tokens: list[str]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Convert ids to token strings."""

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join tokens to text."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a batch of texts.

    Attributes:
        strings: Each sample's tokens.
        words: For each token, the number of the word it belongs to; None for special tokens and
            padding.
        texts: Each sample's words as they stand in its text, by number; empty if not known.
    """

    strings: list[list[str]]
    words: list[list[int | None]]
    texts: list[list[str]] = field(default_factory=list)

    def select_samples(self, rows: slice) -> Tokens:
        """Select the tokens of some of the samples."""
        return Tokens(self.strings[rows], self.words[rows], self.texts[rows])

    @classmethod
    def concatenate(cls, batches: Sequence[Tokens]) -> Tokens:
        """Concatenate the tokens of several batches."""
        return cls(
            [one for batch in batches for one in batch.strings],
            [one for batch in batches for one in batch.words],
            [one for batch in batches for one in batch.texts],
        )


def find_tokens(
    inputs: Mapping[str, object], ids: Tensor, tokenizer: TextTokenizer | None = None
) -> Tokens | None:
    """Find token strings and words: from a fast tokenizer's encodings, or from ids, or None."""
    encodings = getattr(inputs, "encodings", None)
    if encodings and [len(e.ids) for e in encodings] == [ids.shape[1]] * len(ids):
        return Tokens([list(e.tokens) for e in encodings], [list(e.word_ids) for e in encodings])
    if tokenizer is None or ids.is_floating_point():  # embeddings have no names
        return None
    strings = [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
    return Tokens(strings, [_number_words(row, tokenizer) for row in strings])


def _number_words(tokens: Sequence[str], tokenizer: TextTokenizer) -> list[int | None]:
    """Number the words: a space separates them, and punctuation is a word of its own."""
    # An unknown word is a word, and so is a masked one.
    special = set(tokenizer.all_special_tokens) - {
        tokenizer.unk_token,
        getattr(tokenizer, "mask_token", None),
    }
    numbers: list[int | None] = []
    number, before = -1, None
    for token in tokens:
        if token in special:
            numbers.append(None)
            before = None
            continue
        pair = "" if before is None else tokenizer.convert_tokens_to_string([before, token]).strip()
        stands_alone = not _has_letters(token) or before is None or not _has_letters(before)
        if stands_alone or " " in pair:
            number += 1
        numbers.append(number)
        before = token
    return numbers


def _has_letters(token: str) -> bool:
    return any(character.isalnum() for character in _strip_marks(token))


def sum_over_words(
    strings: Sequence[str], words: Sequence[int | None], scores: Sequence[float]
) -> list[tuple[str, float]]:
    """Sum each word's token scores; special tokens and padding are left out."""
    sums: list[tuple[int, str, float]] = []
    for token, word, score in zip(strings, words, scores, strict=True):
        if word is None:
            continue
        if sums and sums[-1][0] == word:
            sums[-1] = (word, sums[-1][1] + _strip_marks(token), sums[-1][2] + score)
        else:
            sums.append((word, _strip_marks(token), score))
    return [(text, score) for _, text, score in sums]


def _strip_marks(token: str) -> str:
    for mark in _PREFIX_MARKS:
        if token.startswith(mark) and token != mark:
            token = token.removeprefix(mark)
    return token.removesuffix(_SUFFIX_MARK) or token
