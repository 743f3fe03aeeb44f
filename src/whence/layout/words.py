"""The tokens of a text as strings, and sub-tokens joined into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

# How tokenizers mark the pieces of a word: WordPiece, byte-level BPE, SentencePiece; end of word.
_BEFORE = ("##", "Ġ", "▁")
_BEHIND = "</w>"


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

    def of_samples(self, rows: slice) -> Tokens:
        """The tokens of some of the texts."""
        return Tokens(self.strings[rows], self.words[rows], self.texts[rows])

    @classmethod
    def joined(cls, parts: Sequence[Tokens]) -> Tokens:
        """The tokens of several batches as one."""
        return cls(
            [one for part in parts for one in part.strings],
            [one for part in parts for one in part.words],
            [one for part in parts for one in part.texts],
        )


def find_tokens(inputs: Mapping[str, Any], ids: Tensor, tokenizer: Any = None) -> Tokens | None:
    """Tokens from what a fast tokenizer returned, or from ids and a tokenizer, or None."""
    encodings = getattr(inputs, "encodings", None)
    if (
        encodings
        and len(encodings) == len(ids)
        and all(len(e.ids) == ids.shape[1] for e in encodings)
    ):
        return Tokens([list(e.tokens) for e in encodings], [list(e.word_ids) for e in encodings])
    if tokenizer is None or ids.is_floating_point():  # embeddings have no names
        return None
    strings = [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
    return Tokens(strings, [_numbered_words(row, tokenizer) for row in strings])


def _numbered_words(tokens: Sequence[str], tokenizer: Any) -> list[int | None]:
    """Number the words: a space would be written between them, and punctuation stands alone."""
    special = set(tokenizer.all_special_tokens) - {tokenizer.unk_token}
    numbers: list[int | None] = []
    number, before = -1, None
    for token in tokens:
        if token in special:
            numbers.append(None)
            before = None
            continue
        pair = "" if before is None else tokenizer.convert_tokens_to_string([before, token]).strip()
        alone = not _has_letters(token) or before is None or not _has_letters(before)
        if alone or " " in pair:
            number += 1
        numbers.append(number)
        before = token
    return numbers


def _has_letters(token: str) -> bool:
    return any(character.isalnum() for character in _unmarked(token))


def joined_words(
    strings: Sequence[str], words: Sequence[int | None], scores: Sequence[float]
) -> list[tuple[str, float]]:
    """Each word with the sum of its tokens' scores; special tokens and padding are left out."""
    joined: list[tuple[int, str, float]] = []
    for token, word, score in zip(strings, words, scores, strict=True):
        if word is None:
            continue
        if joined and joined[-1][0] == word:
            joined[-1] = (word, joined[-1][1] + _unmarked(token), joined[-1][2] + score)
        else:
            joined.append((word, _unmarked(token), score))
    return [(text, score) for _, text, score in joined]


def _unmarked(token: str) -> str:
    for mark in _BEFORE:
        if token.startswith(mark) and token != mark:
            token = token.removeprefix(mark)
    return token.removesuffix(_BEHIND) or token
