"""Tokenise texts, cut at the model's length, and join prepared inputs to one padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError
from whence.models.loaded import PreparedBatch

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import BatchEncoding, PreTrainedTokenizerBase

# For models and tokenizers that set no limit.
_DEFAULT_LENGTH = 512


class TextPreprocessor:
    """Tokenise texts with a tokenizer of transformers.

    Args:
        tokenizer: The tokenizer; it gets a padding token if it has none.
        model: The model, whose positions limit the length; its config gets the padding token.
        may_change: Whether they are whence's own. Those of the user stay as they are.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, model: nn.Module, may_change: bool = True
    ) -> None:
        self.tokenizer = tokenizer
        config = getattr(model, "config", None)
        if may_change and tokenizer.pad_token is None:
            # Generative models have no padding; the token does not matter where the mask is 0.
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        if may_change and config is not None and getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = tokenizer.pad_token_id
        known = (find_position_limit(model), tokenizer.model_max_length)
        limits = [n for n in known if n and n < 1_000_000]
        self.max_length = int(min(limits, default=_DEFAULT_LENGTH))

    def __call__(self, texts: Sequence[str]) -> PreparedBatch:
        """Tokenise a batch of texts, padded to the longest.

        Raises:
            WhenceError: A text has no words, or there is no token to pad texts with.
        """
        if len(texts) > 1 and self.tokenizer.pad_token is None:
            raise WhenceError(
                "The tokenizer has no padding token, which several texts at once need: set "
                "tokenizer.pad_token = tokenizer.eos_token, and model.config.pad_token_id = "
                "tokenizer.pad_token_id; or explain the texts one by one."
            )
        return join_batches([self._tokenize(text) for text in texts], self.tokenizer)

    def _tokenize(self, text: str) -> PreparedBatch:
        batch = self.tokenizer(
            [text],
            truncation=True,
            max_length=self.max_length,
            return_overflowing_tokens=not self.tokenizer.is_fast,
            verbose=False,
        )
        cut = _pop_cut_count(batch)
        (ids,) = batch["input_ids"]
        empty = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        if empty.issuperset(ids):
            raise WhenceError(f"The model's tokenizer finds no words in {text[:40]!r}.")
        notes, limit = [], self.max_length
        if cut:
            notes.append(
                f"cut at {limit} of {len(ids) + cut} tokens, the most that the model reads"
            )
        unknown = ids.count(self.tokenizer.unk_token_id)
        if unknown:
            notes.append(f"{unknown} token(s) are not in the model's vocabulary")
        return PreparedBatch(batch.convert_to_tensors("pt"), [notes], texts=[text])


def _pop_cut_count(batch: BatchEncoding) -> int:
    """Count the tokens that were cut off one text, and drop what the model does not take."""
    batch.pop("overflowing_tokens", None)
    if not batch.encodings:
        return sum(batch.pop("num_truncated_tokens", ()))
    masks = [part.special_tokens_mask for part in batch.encodings[0].overflowing]
    return sum(mask.count(0) for mask in masks)


def find_position_limit(model: nn.Module) -> int | None:
    """Return how many tokens a text model has positions for; None if it sets no limit."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa's positions begin after that of padding.
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - offset
    return limit if isinstance(limit, int) and limit > 0 else None


def join_batches(
    batches: Sequence[PreparedBatch], tokenizer: PreTrainedTokenizerBase | None = None
) -> PreparedBatch:
    """Join batches; texts, one a batch, are padded to the longest, and not tokenised again."""
    if len(batches) == 1:
        return batches[0]
    notes = [note for batch in batches for note in batch.notes]
    pixels = [batch.inputs for batch in batches if isinstance(batch.inputs, Tensor)]
    if pixels or tokenizer is None:
        photos = [photo for batch in batches for photo in batch.photos or ()] or None
        media = [one for batch in batches for one in batch.media or ()] or None
        return PreparedBatch(torch.cat(pixels), notes, photos=photos, media=media)
    encoded = [batch.inputs for batch in batches if not isinstance(batch.inputs, Tensor)]
    texts = [text for batch in batches for text in batch.texts or ()]
    return PreparedBatch(_pad(encoded, tokenizer), notes, texts=texts)


def _pad(texts: Sequence[Any], tokenizer: PreTrainedTokenizerBase) -> BatchEncoding:
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
