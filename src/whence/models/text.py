"""Texts into tokens, cut at the model's length, with a note where that was done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from whence.errors import WhenceError
from whence.models.loaded import Prepared

# For models and tokenizers that set no limit.
_LONGEST = 512


class TextPreparation:
    """Texts through a tokenizer of transformers."""

    def __init__(self, tokenizer: Any, model: nn.Module) -> None:
        self.tokenizer = tokenizer
        if tokenizer.pad_token is None:
            # Generative models have no padding; what stands behind the mask does not matter.
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        config: Any = model.config
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = tokenizer.pad_token_id
        known = (position_limit(model), tokenizer.model_max_length)
        limits = [n for n in known if n and n < 1_000_000]
        self.max_length = int(min(limits, default=_LONGEST))

    def __call__(self, texts: Sequence[str]) -> Prepared:
        """Prepare a batch of texts."""
        whole = self.tokenizer(list(texts), truncation=False, verbose=False)
        lengths = [len(ids) for ids in whole["input_ids"]]
        batch = self.tokenizer(
            list(texts),
            truncation=True,
            max_length=self.max_length,
            padding=True,
            return_tensors="pt",
        )
        notes: list[list[str]] = [[] for _ in texts]
        for sample, length in enumerate(lengths):
            if length > self.max_length:
                notes[sample].append(
                    f"cut at {self.max_length} of {length} tokens, the most that the model reads"
                )
            ids = batch["input_ids"][sample].tolist()
            self._check(texts[sample], ids)
            unknown = ids.count(self.tokenizer.unk_token_id)
            if unknown:
                notes[sample].append(f"{unknown} token(s) are not in the model's vocabulary")
        return Prepared(batch, list(texts), notes)

    def _check(self, text: str, ids: Sequence[int]) -> None:
        empty = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        if empty.issuperset(ids):
            raise WhenceError(f"The model's tokenizer finds no words in {text[:40]!r}.")


def position_limit(model: nn.Module) -> int | None:
    """How many tokens a text model has positions for; None if it sets no limit."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa's positions begin behind that of padding.
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - offset
    return limit if isinstance(limit, int) and limit > 0 else None
