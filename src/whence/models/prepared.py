"""A batch of photos or texts as a model takes it, and the joining of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import BatchEncoding, PreTrainedTokenizerBase


@dataclass
class PreparedBatch:
    """A batch as the model takes it.

    Attributes:
        inputs: The model's input: pixels, or tokenised texts.
        contents: For each input, the part of the photo that was not cropped, or the text.
        notes: For each input, the changes that its owner should know of.
    """

    inputs: Tensor | BatchEncoding
    contents: list[Any]
    notes: list[list[str]]


def join_batches(
    batches: Sequence[PreparedBatch], tokenizer: PreTrainedTokenizerBase | None = None
) -> PreparedBatch:
    """Join batches; texts, one a batch, are padded to the longest, and not tokenised again."""
    if len(batches) == 1:
        return batches[0]
    contents = [content for batch in batches for content in batch.contents]
    notes = [note for batch in batches for note in batch.notes]
    pixels = [batch.inputs for batch in batches if isinstance(batch.inputs, Tensor)]
    if pixels or tokenizer is None:
        return PreparedBatch(torch.cat(pixels), contents, notes)
    texts = [batch.inputs for batch in batches if not isinstance(batch.inputs, Tensor)]
    return PreparedBatch(_pad(texts, tokenizer), contents, notes)


def _pad(texts: Sequence[BatchEncoding], tokenizer: PreTrainedTokenizerBase) -> BatchEncoding:
    """Pad tokenised texts to the longest."""
    device = texts[0]["input_ids"].device
    rows = {name: [text[name][0].tolist() for text in texts] for name in texts[0]}
    padded = tokenizer.pad(rows, padding=True, return_tensors="pt").to(device)
    encodings = [encoding for text in texts for encoding in text.encodings or ()]
    if not encodings:  # a tokenizer in Python has none
        return padded
    length = padded["input_ids"].shape[1]
    copies = [_copy_padded(encoding, tokenizer, length) for encoding in encodings]
    return type(padded)(dict(padded), copies)


def _copy_padded(encoding: Encoding, tokenizer: PreTrainedTokenizerBase, length: int) -> Encoding:
    """Copy a fast tokenizer's encoding with padding, as the tokenizer itself would pad it."""
    copy = type(encoding).merge([encoding], growing_offsets=False)
    copy.pad(
        length,
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        pad_type_id=tokenizer.pad_token_type_id,
        pad_token=tokenizer.pad_token,
    )
    return copy
