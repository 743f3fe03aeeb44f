"""The tokens of a text as strings, and sub-tokens joined into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# How tokenizers mark the pieces of a word: WordPiece, byte-level BPE, SentencePiece, end of word.
_MARKS = ("##", "Ġ", "▁", "</w>")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a batch of texts.

    Attributes:
        strings: Each sample's tokens.
        words: For each token, the number of the word it belongs to; None for special tokens and
            padding.
    """

    strings: list[list[str]]
    words: list[list[int | None]]


def find_tokens(inputs: Mapping[str, Any], ids: Tensor, tokenizer: Any = None) -> Tokens | None:
    """Tokens from what a fast tokenizer returned, or from ids and a tokenizer, or None."""
    encodings = getattr(inputs, "encodings", None)
    if (
        encodings
        and len(encodings) == len(ids)
        and all(len(e.ids) == ids.shape[1] for e in encodings)
    ):
        return Tokens([list(e.tokens) for e in encodings], [list(e.word_ids) for e in encodings])
    if tokenizer is None:
        return None
    strings = [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
    special = set(tokenizer.all_special_tokens)
    return Tokens(strings, [_words_from_marks(row, special) for row in strings])


def _words_from_marks(tokens: Sequence[str], special: set[str]) -> list[int | None]:
    """Number the words by the marks of WordPiece (##continued) or of BPE and SentencePiece."""
    marks_starts = any(t.startswith(("Ġ", "▁")) for t in tokens)
    words: list[int | None] = []
    word, open_word = -1, False
    for token in tokens:
        if token in special:
            words.append(None)
            open_word = False
            continue
        starts = token.startswith(("Ġ", "▁")) if marks_starts else not token.startswith("##")
        if starts or not open_word:
            word += 1
        words.append(word)
        open_word = True
    return words


def joined_words(
    strings: Sequence[str], words: Sequence[int | None], scores: Sequence[float]
) -> list[tuple[str, float]]:
    """Each word with the sum of its tokens' scores; special tokens and padding are left out."""
    joined: list[tuple[int, str, float]] = []
    for token, word, score in zip(strings, words, scores, strict=True):
        if word is None:
            continue
        for mark in _MARKS:
            token = token.replace(mark, "") if token != mark else token
        if joined and joined[-1][0] == word:
            joined[-1] = (word, joined[-1][1] + token, joined[-1][2] + score)
        else:
            joined.append((word, token, score))
    return [(text, score) for _, text, score in joined]
