"""A batch of photos or texts as a model takes it, and the joining of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class PreparedBatch:
    """A batch as the model takes it.

    Attributes:
        inputs: The model's input: pixels, or a tokenizer's `BatchEncoding`.
        contents: For each input, the part of the photo that was not cropped, or the text.
        notes: For each input, the changes that its owner should know of.
    """

    inputs: Tensor | Mapping[str, Any]
    contents: list[Any]
    notes: list[list[str]]


def join_batches(batches: Sequence[PreparedBatch], tokenizer: Any = None) -> PreparedBatch:
    """Join batches; texts, one a batch, are padded to the longest, and not tokenised again."""
    if len(batches) == 1:
        return batches[0]
    contents = [content for batch in batches for content in batch.contents]
    notes = [note for batch in batches for note in batch.notes]
    pixels = [batch.inputs for batch in batches if isinstance(batch.inputs, Tensor)]
    if pixels:
        return PreparedBatch(torch.cat(pixels), contents, notes)
    return PreparedBatch(_pad([batch.inputs for batch in batches], tokenizer), contents, notes)


def _pad(texts: Sequence[Any], tokenizer: Any) -> Mapping[str, Any]:
    """Pad tokenised texts, `BatchEncoding`s of one text each, to the longest."""
    device = texts[0]["input_ids"].device
    rows = {name: [text[name][0].tolist() for text in texts] for name in texts[0]}
    padded: Mapping[str, Any] = tokenizer.pad(rows, padding=True, return_tensors="pt").to(device)
    if any(not text.encodings for text in texts):  # by a tokenizer in Python, which has none
        return padded
    encodings = [_copy_padded(text.encodings[0], tokenizer, padded) for text in texts]
    return type(texts[0])(dict(padded), encodings)  # type: ignore[no-any-return]


def _copy_padded(encoding: Any, tokenizer: Any, padded: Mapping[str, Tensor]) -> Any:
    """Copy a fast tokenizer's encoding with padding, as the tokenizer itself would pad it."""
    copy = type(encoding).merge([encoding], growing_offsets=False)
    copy.pad(
        padded["input_ids"].shape[1],
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        pad_type_id=tokenizer.pad_token_type_id,
        pad_token=tokenizer.pad_token,
    )
    return copy
