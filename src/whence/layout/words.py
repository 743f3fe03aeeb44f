"""The tokens of a text as strings, and the sum of scores over each word's tokens."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

from torch import Tensor

from whence.layout.spelling import Offset, TextTokenizer, number_words, spell_tokens

# Marks of tokenizers: WordPiece, byte-level BPE and SentencePiece; then the end of a word.
_PREFIX_MARKS = ("##", "Ġ", "▁")
_SUFFIX_MARK = "</w>"
# Those of a space, and of a byte that is in no other token.
_SPACES = ("Ġ", "▁")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a batch of texts.

    Attributes:
        strings: Each sample's tokens.
        words: For each token, the number of the word it belongs to; None for special tokens and
            padding.
        texts: Each sample's words as they stand in its text, by number; empty if not known.
        contents: Each sample's whole text; empty if not known.
        offsets: For each token, its first character in the text and the one after its last; None
            for special tokens and padding. Empty if the text is not known.
    """

    strings: list[list[str]]
    words: list[list[int | None]]
    texts: list[list[str]] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)
    offsets: list[list[Offset | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take pairs of any type, as a file holds them."""
        offsets = [[None if o is None else (o[0], o[1]) for o in row] for row in self.offsets]
        object.__setattr__(self, "offsets", offsets)

    def select_samples(self, rows: slice) -> Tokens:
        """Select the tokens of some of the samples."""
        return Tokens(
            self.strings[rows],
            self.words[rows],
            self.texts[rows],
            self.contents[rows],
            self.offsets[rows],
        )

    def select_tokens(self, sample: int, keep: Sequence[bool]) -> Tokens:
        """Select the marked tokens of one sample, as a batch of one."""
        one = self.select_samples(slice(sample, sample + 1))
        return dataclasses.replace(
            one,
            strings=[list(compress(one.strings[0], keep))],
            words=[list(compress(one.words[0], keep))],
            offsets=[list(compress(row, keep)) for row in one.offsets],
        )

    @classmethod
    def concatenate(cls, batches: Sequence[Tokens]) -> Tokens:
        """Concatenate the tokens of several batches."""
        return cls(
            [one for batch in batches for one in batch.strings],
            [one for batch in batches for one in batch.words],
            [one for batch in batches for one in batch.texts],
            [one for batch in batches for one in batch.contents],
            [one for batch in batches for one in batch.offsets],
        )


def find_tokens(
    inputs: Mapping[str, object], ids: Tensor, tokenizer: TextTokenizer | None = None
) -> Tokens | None:
    """Find token strings and words: from a fast tokenizer's encodings, or from ids, or None."""
    encodings = getattr(inputs, "encodings", None)
    if encodings and [len(e.ids) for e in encodings] == [ids.shape[1]] * len(ids):
        strings = [list(e.tokens) for e in encodings]
        words = [_list_words(e.word_ids, e.sequence_ids) for e in encodings]
    elif tokenizer is None or ids.is_floating_point():  # embeddings have no names
        return None
    else:
        strings, words = [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()], []
    if tokenizer is None:
        return Tokens(strings, [_split_joined(*one) for one in zip(strings, words, strict=True)])
    spelled = [spell_tokens(row, tokenizer) for row in strings]
    contents, offsets = [text for text, _ in spelled], [places for _, places in spelled]
    if not words or any(map(_has_joined, strings, words)):
        words = [number_words(*one) for one in spelled]
    texts = [cut_words(*one) for one in zip(contents, offsets, words, strict=True)]
    return Tokens(strings, words, texts, contents, offsets)


def _list_words(words: Sequence[int | None], sequences: Sequence[int | None]) -> list[int | None]:
    """The word of each token; those of a second text are counted on from the first one's."""
    counts: dict[int, int] = {}
    for word, sequence in zip(words, sequences, strict=True):
        if word is not None and sequence is not None:
            counts[sequence] = max(counts.get(sequence, 0), word + 1)
    return [
        None if word is None else word + sum(counts[n] for n in counts if n < (sequence or 0))
        for word, sequence in zip(words, sequences, strict=True)
    ]


def cut_words(
    text: str, offsets: Sequence[Offset | None], words: Sequence[int | None]
) -> list[str]:
    """Cut a text into its words as they are written, by number."""
    spans: dict[int, Offset] = {}
    for offset, word in zip(offsets, words, strict=True):
        if word is not None and offset is not None:
            first, last = spans.get(word, offset)
            spans[word] = (min(first, offset[0]), max(last, offset[1]))
    count = max((word for word in words if word is not None), default=-1) + 1
    written = [text[slice(*spans.get(n, (0, 0)))] for n in range(count)]
    return [word.strip() or word for word in written]


def _has_joined(strings: Sequence[str], words: Sequence[int | None]) -> bool:
    """Whether a tokenizer calls several words one, as those do that never split at spaces."""
    pairs = zip(strings, words, words[1:], strings[1:], strict=False)
    return any(w is not None and w == v and t.startswith(_SPACES) for _, w, v, t in pairs)


def _split_joined(strings: Sequence[str], words: Sequence[int | None]) -> list[int | None]:
    """Number words by the marks of their tokens, if the tokenizer calls several words one."""
    if not _has_joined(strings, words):
        return list(words)
    text, offsets = "", list[Offset | None]()
    for token, word in zip(strings, words, strict=True):
        byte = _BYTE.fullmatch(token)
        piece = _read_byte(byte[1]) if byte else token
        for mark in _SPACES:
            piece = piece.replace(mark, " ")
        offsets.append(None if word is None else (len(text), len(text) + len(piece)))
        text += "" if word is None else piece
    return number_words(text, offsets)


def _read_byte(digits: str) -> str:
    """The character of a byte; a letter for one that is only part of a character."""
    number = int(digits, 16)
    return chr(number) if number < 128 else "x"


def sum_over_words(
    strings: Sequence[str], words: Sequence[int | None], scores: Sequence[float]
) -> list[tuple[str, float]]:
    """Sum each word's token scores; special tokens and padding are left out."""
    sums: list[tuple[int, str, float]] = []
    for token, word, score in zip(strings, words, scores, strict=True):
        if word is None:
            continue
        if sums and sums[-1][0] == word:
            sums[-1] = (word, sums[-1][1] + strip_marks(token), sums[-1][2] + score)
        else:
            sums.append((word, strip_marks(token), score))
    return [(text, score) for _, text, score in sums]


def strip_marks(token: str) -> str:
    """The token without the marks that its tokenizer puts before or after it."""
    for mark in _PREFIX_MARKS:
        if token.startswith(mark) and token != mark:
            token = token.removeprefix(mark)
    return token.removesuffix(_SUFFIX_MARK) or token
