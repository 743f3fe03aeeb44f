"""Delete words of texts or replace them by a mask token, and run the model on what is left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.models import LoadedModel, PreparedBatch
from whence.models.forward import compute_logits
from whence.models.loaded import find_word_spans

Replacement = Literal["mask", "delete"]
"""A word's tokens become the mask token, or the word is deleted and the text tokenised again."""


class TextUnits:
    """The words of one text. They are deleted from the text, which is then tokenised again.

    Words beyond the model's maximum length take no part.
    """

    def __init__(self, loaded: LoadedModel, prepared: PreparedBatch) -> None:
        encodings = getattr(prepared.inputs, "encodings", None)
        if not encodings or prepared.texts is None:
            raise WhenceError(
                f"The tokenizer of '{loaded.name}' does not tell where words stand in a text; a "
                f"fast tokenizer is needed."
            )
        self.loaded = loaded
        self.word_ids: list[int | None] = encodings[0].word_ids
        spans = find_word_spans(encodings[0])
        self.order, self.spans = list(spans), list(spans.values())
        if len(spans) < 2:
            raise WhenceError("A text of a single word leaves nothing when it is deleted.")
        self.text: str = prepared.texts[0][: max(end for _, end in self.spans)]
        self.words: tuple[str, ...] | None = tuple(self.text[a:b].strip() for a, b in self.spans)

    def score(self, explanation: Explanation) -> Tensor:
        """Score words by the sum over their tokens, (classes, units)."""
        tokens = explanation.scores.reshape(-1, explanation.scores.shape[-1]).double()
        if tokens.shape[1] != len(self.word_ids):
            raise WhenceError(
                f"The explanation has scores of {tokens.shape[1]} tokens, and the text has "
                f"{len(self.word_ids)}: they do not belong together."
            )
        members = [[number == word for number in self.word_ids] for word in self.order]
        return tokens @ torch.tensor(members, dtype=tokens.dtype, device=tokens.device).T

    def draw_scores(self, draws: int, seed: int, explanation: Explanation) -> Tensor:  # noqa: ARG002
        """Draw random scores, (draws, units)."""
        return SeededRandom(seed).draw_uniform(draws, len(self.spans))

    def arrange(self, deleted: Tensor) -> Tensor:
        """Arrange deleted words as (words,)."""
        return deleted

    def run(self, deleted: Tensor, texts: Tensor) -> Tensor:  # noqa: ARG002
        """Logits (rows, classes) without the deleted words (rows, units)."""
        batch = self.loaded.tokenizer(
            [self.render(row) for row in deleted],
            truncation=True,
            max_length=len(self.word_ids),  # as the whole text was cut
            padding=True,
            return_tensors="pt",
        )
        return compute_logits(self.loaded, batch.to(self.loaded.device))

    def render(self, deleted: Tensor) -> str:
        """Render the text without the deleted words (units,)."""
        if not deleted.any():
            return self.text
        letters = list(self.text)
        for (start, end), gone in zip(self.spans, deleted.tolist(), strict=True):
            if gone:
                letters[start:end] = "\0" * (end - start)
        # One space is left, so that neighbours do not join to a new word.
        return re.sub(r"\s*\0[\s\0]*", " ", "".join(letters)).strip()


class WordRunner:
    """Run a model on texts some of whose words are deleted or masked.

    Args:
        loaded: The model.
        prepared: The texts, as `loaded.prepare` returns them.
        units: The words of each text.
        replacement: What becomes of the words.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        prepared: PreparedBatch,
        units: Sequence[TextUnits],
        replacement: Replacement,
    ) -> None:
        if isinstance(prepared.inputs, Tensor):
            raise WhenceError(f"The input of '{loaded.name}' is no text.")
        self.loaded, self.units, self.inputs = loaded, units, dict(prepared.inputs)
        self.replacement = replacement
        self.mask_token = find_mask_token(loaded) if replacement == "mask" else -1
        self.words = find_word_indices(prepared, units)

    def __call__(self, deleted: Tensor, texts: Tensor) -> Tensor:
        """Logits (rows, classes) without the deleted words (rows, units) of texts (rows,)."""
        if self.replacement == "mask":
            return compute_logits(self.loaded, self.mask(deleted, texts))
        rows = zip(texts.tolist(), deleted.cpu(), strict=True)
        rendered = [self.units[at].render(row[: len(self.units[at].spans)]) for at, row in rows]
        batch = self.loaded.tokenizer(
            rendered,
            truncation=True,
            max_length=self.words.shape[1],
            padding=True,
            return_tensors="pt",
        )
        return compute_logits(self.loaded, dict(batch.to(self.loaded.device)))

    def mask(self, deleted: Tensor, texts: Tensor) -> dict[str, Tensor]:
        """The inputs of rows, with the mask token for each token of a deleted word."""
        words = self.words.to(texts.device)[texts]
        hidden = deleted.gather(1, words.clamp(min=0)) & (words >= 0)
        inputs = {name: tensor[texts.to(tensor.device)] for name, tensor in self.inputs.items()}
        ids = inputs["input_ids"]
        return inputs | {"input_ids": ids.masked_fill(hidden.to(ids.device), self.mask_token)}


def find_mask_token(loaded: LoadedModel) -> int:
    """Find the token that stands for a missing word: the mask token, or that of unknown words."""
    tokenizer = loaded.tokenizer
    found = (getattr(tokenizer, f"{name}_token_id", None) for name in ("mask", "unk"))
    token = next((one for one in found if one is not None), None)
    if token is None:
        raise WhenceError(
            f"The tokenizer of '{loaded.title}' has no mask token and none of unknown words; "
            f"delete words instead: replace=delete."
        )
    return int(token)


def find_word_indices(prepared: PreparedBatch, units: Sequence[TextUnits]) -> Tensor:
    """Find the unit that each token of padded texts belongs to, (texts, tokens); -1 for none."""
    encodings = getattr(prepared.inputs, "encodings", None) or ()
    places = [{word: at for at, word in enumerate(one.order)} for one in units]
    listed = [
        [-1 if word is None else of[word] for word in encoding.word_ids]
        for encoding, of in zip(encodings, places, strict=True)
    ]
    return torch.tensor(listed, dtype=torch.long)
