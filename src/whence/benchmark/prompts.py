"""Prompts and answers of language models: tokenise them, and run the model without some tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.faithfulness.texts import find_mask_token
from whence.models import LoadedModel
from whence.tracing import find_logits

if TYPE_CHECKING:
    from whence.datasets import Sample

Removal = Literal["mean", "unknown", "delete"]
"""Tokens become the mean embedding or the token of unknown words, or the text closes up."""

# Rows have logits over a whole vocabulary, so fewer go together than of classifiers.
_ROWS = 64
# Before these no space is written.
_CLOSING = ".,;:!?)]}'\"’”"  # noqa: RUF001


@dataclass(frozen=True)
class PreparedPrompt:
    """A tokenised prompt with its answer.

    Attributes:
        sample: The sample.
        ids: The tokens of the prompt.
        offsets: Where each stands in the text; (0, 0) for special tokens.
        answer: The tokens of the answer; none if it is the model's own next token.
        rival: The first token of the answer that would be wrong, if there is one.
    """

    sample: Sample
    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    answer: tuple[int, ...]
    rival: int | None = None

    @property
    def name(self) -> str:
        """The name of the sample."""
        return self.sample.name

    def mark(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """For each token, the number of the span of characters that it overlaps; -1 for none."""
        return [
            next((n for n, (a, b) in enumerate(spans) if start < b and end > a), -1)
            if end > start
            else -1
            for start, end in self._letter_offsets
        ]

    @cached_property
    def _letter_offsets(self) -> list[tuple[int, int]]:
        """The offsets without spaces, with which many tokenizers begin a word's first token."""
        found, text = [], str(self.sample.content)
        for start, end in self.offsets:
            letters = text[start:end]
            found.append((start + len(letters) - len(letters.lstrip()), end))
        return found


def prepare_prompt(loaded: LoadedModel, sample: Sample) -> PreparedPrompt:
    """Tokenise a prompt, and the answer after it.

    Raises:
        WhenceError: The tokens of prompt and answer cannot be told apart, or are too many.
    """
    prompt = str(sample.content).rstrip()
    encoded = _tokenize(loaded, prompt)
    ids, offsets = encoded
    limit = getattr(loaded.preprocessor, "max_length", 512)
    answer = _find_answer(loaded, prompt, sample.answer) if sample.answer.strip() else ((), ids)
    if answer[1] != ids:
        raise WhenceError(
            f"The tokenizer of '{loaded.title}' joins the end of the prompt '{sample.name}' with "
            f"its answer {sample.answer!r}."
        )
    if len(ids) + len(answer[0]) > limit:
        raise WhenceError(
            f"The prompt '{sample.name}' has {len(ids)} tokens with its answer, more than the "
            f"{limit} that '{loaded.title}' reads."
        )
    rival = _find_answer(loaded, prompt, sample.rival)[0][0] if sample.rival else None
    return PreparedPrompt(sample, ids, offsets, answer[0], rival)


def _tokenize(
    loaded: LoadedModel, text: str
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """The tokens of a text with the special tokens before it, and where they stand."""
    encoded = loaded.tokenizer(text, return_offsets_mapping=True, verbose=False)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    # Some tokenizers end a text by a special token, after which nothing would be continued.
    special = set(loaded.tokenizer.all_special_ids)
    while len(ids) > 1 and ids[-1] in special and offsets[-1][0] >= offsets[-1][1]:
        ids, offsets = ids[:-1], offsets[:-1]
    return tuple(ids), tuple((start, end) for start, end in offsets)


def _find_answer(
    loaded: LoadedModel, prompt: str, answer: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of an answer after a prompt, and those before it."""
    answer = answer.strip()
    gap = "" if answer[0] in _CLOSING else " "
    ids, offsets = _tokenize(loaded, prompt + gap + answer)
    before = sum(end <= len(prompt) for _, end in offsets)
    return ids[before:], ids[:before]


def check_tokenizer(loaded: LoadedModel) -> None:
    """Refuse a tokenizer that does not tell where tokens stand."""
    if not getattr(loaded.tokenizer, "is_fast", False):
        raise WhenceError(
            f"The tokenizer of '{loaded.title}' does not tell where tokens stand in a text; a fast "
            f"tokenizer is needed."
        )


def pad_rows(rows: Sequence[Sequence[int]], value: int, device: torch.device | str) -> Tensor:
    """Pad lists of numbers at their ends: (rows, longest)."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows], device=device)


class AnswerRunner:
    """Run a language model on prompts without some tokens, and watch its answers.

    Args:
        loaded: The model.
        prompts: The prompts.
        answers: The tokens of each prompt's answer, one or more.
        removal: What becomes of tokens that are removed.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        prompts: Sequence[PreparedPrompt],
        answers: Sequence[Sequence[int]],
        removal: Removal = "delete",
    ) -> None:
        device = loaded.device
        self.loaded, self.removal = loaded, removal
        rows = [[*one.ids, *of[:-1]] for one, of in zip(prompts, answers, strict=True)]
        self.ids = pad_rows(rows, 0, device)
        self.exists = pad_rows([[1] * len(row) for row in rows], 0, device).bool()
        # The answer's own tokens, which stand after the prompt, always stay.
        sizes = zip(prompts, rows, strict=True)
        marks = [[1] * len(one.ids) + [0] * (len(row) - len(one.ids)) for one, row in sizes]
        self.may_go = pad_rows(marks, 0, device).bool()
        self.answers = pad_rows(answers, 0, device)
        self.answer_lengths = torch.tensor([len(of) for of in answers], device=device)
        self.chunk_size = _ROWS if torch.device(device).type != "cpu" else _ROWS // 4
        self._unknown = find_mask_token(loaded) if removal == "unknown" else 0

    def __call__(self, removed: Tensor, prompts: Tensor) -> Tensor:
        """Log-probabilities (rows, 1) of answers without the removed tokens (rows, units)."""
        prompts = prompts.to(self.ids.device)
        exists, ids = self.exists[prompts], self.ids[prompts]
        gone = torch.zeros_like(exists)
        width = min(removed.shape[1], exists.shape[1])
        gone[:, :width] = removed[:, :width].to(gone.device)
        gone &= self.may_go[prompts]
        if self.removal == "delete":
            kept = exists & ~gone
            ids = ids.gather(1, (~kept).int().argsort(dim=1, stable=True))
            return self._run(self._crop({"input_ids": ids}, kept.sum(1)), kept.sum(1), prompts)
        lengths = exists.sum(1)
        if self.removal == "unknown":
            ids = ids.masked_fill(gone, self._unknown)
            return self._run(self._crop({"input_ids": ids}, lengths), lengths, prompts)
        mixed = torch.where(gone[..., None], self._mean, self._look_up_embeddings(ids))
        return self._run(self._crop({"inputs_embeds": mixed}, lengths), lengths, prompts)

    @torch.no_grad()
    def compute_next(self) -> Tensor:
        """The logits (prompts, vocabulary) of the token after each prompt."""
        lengths = self.exists.sum(1) - self.answer_lengths + 1
        logits, at = self._compute_logits(
            self._crop({"input_ids": self.ids}, self.exists.sum(1)), lengths[:, None] - 1
        )
        return logits[torch.arange(len(at), device=at.device), at[:, 0]]

    @torch.no_grad()
    def _run(self, inputs: dict[str, Tensor], lengths: Tensor, prompts: Tensor) -> Tensor:
        """Sum the log-probabilities of the answers' tokens, each told by the position before it."""
        answers, count = self.answers[prompts], self.answer_lengths[prompts]
        steps = torch.arange(answers.shape[1], device=answers.device)
        positions = (lengths - count)[:, None] + steps
        if (positions[:, 0] < 0).any():
            raise WhenceError("Nothing is left of a prompt; let more of its tokens stay.")
        logits, at = self._compute_logits(inputs, positions.minimum(lengths[:, None] - 1))
        rows = torch.arange(len(at), device=at.device)[:, None]
        chances = logits[rows, at].float().log_softmax(-1).double()
        each = chances.gather(2, answers[..., None])[..., 0]
        return each.masked_fill(steps >= count[:, None], 0).sum(1, keepdim=True)

    def _compute_logits(
        self, inputs: dict[str, Tensor], positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits (rows, some positions, vocabulary), and where among them each position is."""
        if not self._keeps_some:
            return find_logits(self.loaded.model(**inputs)), positions
        wanted, at = torch.unique(positions, return_inverse=True)
        return find_logits(self.loaded.model(**inputs, logits_to_keep=wanted)), at

    @staticmethod
    def _crop(inputs: dict[str, Tensor], lengths: Tensor) -> dict[str, Tensor]:
        """Cut what is padding in all rows, and add the attention mask."""
        longest = int(lengths.max())
        mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
        cropped = {name: tensor[:, :longest] for name, tensor in inputs.items()}
        return cropped | {"attention_mask": mask.long()}

    @cached_property
    def _keeps_some(self) -> bool:
        """Whether the model computes the logits of chosen positions alone."""
        return "logits_to_keep" in inspect.signature(self.loaded.model.forward).parameters

    @cached_property
    def _mean(self) -> Tensor:
        """The mean of the embeddings of all tokens."""
        vocabulary = self.loaded.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        with torch.no_grad():
            every = torch.arange(vocabulary, device=self.ids.device)
            return self._look_up_embeddings(every).mean(0)

    def _look_up_embeddings(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            embedded: Tensor = self.loaded.model.get_input_embeddings()(ids)  # type: ignore[operator]
            return embedded
