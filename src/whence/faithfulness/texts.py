"""Delete words of a text, and run the model on what is left."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.models import LoadedModel, PreparedBatch
from whence.models.forward import compute_logits
from whence.models.loaded import find_word_spans


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
