"""Texts to tokens: each is tokenised once and cut at the model's length, with a note about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from whence.errors import WhenceError
from whence.models.prepared import PreparedBatch, join_batches

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

# For models and tokenizers that set no limit.
_DEFAULT_LENGTH = 512


class TextPreprocessor:
    """Tokenise texts with a tokenizer of transformers.

    Args:
        tokenizer: The tokenizer; it gets a padding token if it has none.
        model: The model, whose positions limit the length; its config gets the padding token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> None:
        self.tokenizer = tokenizer
        if tokenizer.pad_token is None:
            # Generative models have no padding; the token does not matter where the mask is 0.
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        config = getattr(model, "config", None)
        if config is not None and getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = tokenizer.pad_token_id
        known = (find_position_limit(model), tokenizer.model_max_length)
        limits = [n for n in known if n and n < 1_000_000]
        self.max_length = int(min(limits, default=_DEFAULT_LENGTH))

    def __call__(self, texts: Sequence[str]) -> PreparedBatch:
        """Tokenise a batch of texts, padded to the longest.

        Raises:
            WhenceError: The tokenizer finds no words in a text.
        """
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
        notes = []
        if cut:
            length = len(ids) + cut
            notes.append(
                f"cut at {self.max_length} of {length} tokens, the most that the model reads"
            )
        unknown = ids.count(self.tokenizer.unk_token_id)
        if unknown:
            notes.append(f"{unknown} token(s) are not in the model's vocabulary")
        return PreparedBatch(batch.convert_to_tensors("pt"), [text], [notes])


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
