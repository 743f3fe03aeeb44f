"""Tokenise texts that are lists of words, and run the model without some of the words."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import NamedTuple

from torch import Tensor
from transformers import BatchEncoding

from whence.models import LoadedModel
from whence.models.forward import compute_logits

UNREAD = -math.inf
"""The score of words that the model did not read."""

WordIds = Sequence[int | None]


class EncodedWords(NamedTuple):
    """The padded inputs, and for each token the index of its word; None for special tokens."""

    batch: BatchEncoding
    word_ids: list[list[int | None]]


def encode_words(loaded: LoadedModel, texts: Sequence[Sequence[str]]) -> EncodedWords:
    """Tokenise lists of words, truncated at the model's maximum length."""
    options = {
        "truncation": True,
        "max_length": getattr(loaded.preprocessor, "max_length", 512),
        "padding": True,
        "return_tensors": "pt",
    }
    words = [list(text) for text in texts]
    try:
        batch = loaded.tokenizer(words, is_split_into_words=True, **options)
        return EncodedWords(batch, [list(one.word_ids) for one in batch.encodings or ()])
    except (AssertionError, ValueError):
        # Tokenizers that mark spaces refuse words without them, unless they were made for that.
        batch = loaded.tokenizer([" ".join(text) for text in words], **options)
    word_ids = [
        find_word_ids(one.word_ids, one.offsets, text)
        for one, text in zip(batch.encodings or (), words, strict=True)
    ]
    return EncodedWords(batch, word_ids)


def find_word_ids(
    word_ids: WordIds, offsets: Sequence[tuple[int, int]], words: Sequence[str]
) -> list[int | None]:
    """Find the word of each token of words joined by spaces, by its offsets [start, end)."""
    starts = list(accumulate((len(word) + 1 for word in words), initial=0))
    # A token may begin with the space before its word, so its last letter decides.
    return [
        None if word is None or end <= start else bisect.bisect_right(starts, end - 1) - 1
        for word, (start, end) in zip(word_ids, offsets, strict=True)
    ]


def sum_word_scores(scores: Tensor, word_ids: WordIds, words: int) -> list[float]:
    """Sum scores over the tokens of each word; `UNREAD` for words without a token."""
    sums = [UNREAD] * words
    for score, word in zip(scores.double().tolist(), word_ids, strict=True):
        if word is not None:
            sums[word] = score + (0.0 if sums[word] == UNREAD else sums[word])
    return sums


@dataclass(frozen=True)
class WordListRunner:
    """Runs a model on lists of words some of which are deleted."""

    loaded: LoadedModel
    texts: Sequence[Sequence[str]]

    def __call__(self, deleted: Tensor, texts: Tensor) -> Tensor:
        """Logits (rows, classes) without the deleted words (rows, units) of texts (rows,)."""
        kept = [
            list(compress(self.texts[text], row))
            for text, row in zip(texts.tolist(), (~deleted).tolist(), strict=True)
        ]
        batch = encode_words(self.loaded, kept).batch.to(self.loaded.device)
        return compute_logits(self.loaded, dict(batch))
