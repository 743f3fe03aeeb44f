"""What the benchmarks of language models share: prompts, answers, and their explanations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.prompts import (
    AnswerRunner,
    PreparedPrompt,
    check_tokenizer,
    pad_rows,
    prepare_prompt,
)
from whence.benchmark.protocols.base import BenchmarkProtocol, Row
from whence.methods import MethodSpecification
from whence.models import LoadedModel
from whence.targets import Target, span, token

if TYPE_CHECKING:
    from whence.datasets import Sample
    from whence.explanation import Explanation


@dataclass
class PromptProtocol(BenchmarkProtocol[PreparedPrompt]):
    """A benchmark of language models.

    Attributes:
        target: What is explained: the logit of the answer's first token, or the log-probability of
            the whole answer.
    """

    kinds: ClassVar[tuple[str, ...]] = ("text",)
    for_language_models: ClassVar[bool] = True

    target: Literal["token", "answer"] = "token"

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        check_tokenizer(loaded)

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedPrompt:
        return prepare_prompt(loaded, sample)

    def list_answers(
        self, loaded: LoadedModel, prompts: Sequence[PreparedPrompt]
    ) -> tuple[list[list[int]], Tensor]:
        """The tokens of each answer that is explained, and the next token's logits.

        Without an answer, it is the model's own next token.
        """
        logits = AnswerRunner(loaded, prompts, [[0]] * len(prompts)).compute_next()
        own = logits.argmax(-1).tolist()
        answers = [list(one.answer) or [best] for one, best in zip(prompts, own, strict=True)]
        return [of[:1] if self.target == "token" else of for of in answers], logits

    def score_tokens(
        self,
        loaded: LoadedModel,
        prompts: Sequence[PreparedPrompt],
        answers: Sequence[Sequence[int]],
        method: MethodSpecification,
    ) -> Tensor:
        """Scores (prompts, units) of the prompts' tokens; those of shorter prompts end by 0.

        Where a prompt names the wrong answer, what is explained is the right one against it.
        """
        groups: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for number, answer in enumerate(answers):
            has_rival = self.target == "token" and prompts[number].rival is not None
            length = len(answer) if self.target == "answer" else 1
            groups[length, has_rival].append(number)
        longest = max(len(one.ids) for one in prompts)
        scores = torch.zeros(len(prompts), longest, dtype=torch.float64, device=loaded.device)
        for (length, has_rival), members in groups.items():
            rows = [list(prompts[n].ids) for n in members]
            target: Target = token(-1, [answers[n][0] for n in members])
            rivals = [rival for n in members if (rival := prompts[n].rival) is not None]
            against = token(-1, rivals) if has_rival else None
            if self.target == "answer":
                rows = [[*row, *answers[n]] for row, n in zip(rows, members, strict=True)]
                target = span(-length)
            # Padded at the end, which causal models do not look at.
            inputs = {
                "input_ids": pad_rows(rows, _find_padding(loaded), loaded.device),
                "attention_mask": pad_rows([[1] * len(row) for row in rows], 0, loaded.device),
            }
            arguments = method.explain_arguments()
            found = loaded.explainer.explain(inputs, target=target, against=against, **arguments)
            for n, row in zip(members, found.scores.double(), strict=True):
                size = len(prompts[n].ids)
                scores[n, :size] = row[:size]
        return scores

    @override
    def explain_example(
        self, loaded: LoadedModel, sample: Sample, method: MethodSpecification
    ) -> tuple[str, Explanation]:
        prompt = prepare_prompt(loaded, sample)
        (answer,), _ = self.list_answers(loaded, [prompt])
        text, target = str(sample.content).rstrip(), token(-1, answer[0])
        if self.target == "answer" and sample.answer.strip():
            text, target = f"{text} {sample.answer.strip()}", span(-len(answer))
        has_rival = self.target == "token" and prompt.rival is not None
        against = token(-1, prompt.rival) if has_rival else None
        arguments = method.explain_arguments()
        batch = loaded.prepare([text])
        return text, loaded.explain(batch, target=target, against=against, **arguments)


def _find_padding(loaded: LoadedModel) -> int:
    tokenizer = loaded.tokenizer
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return int(next(one for one in known if one is not None))


def pick_probabilities(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """The probability (rows,) of one token for each row of logits (rows, vocabulary)."""
    chosen = torch.tensor(list(tokens), device=logits.device)[:, None]
    return logits.double().softmax(-1).gather(1, chosen)[:, 0]


def mark_candidates(prompts: Sequence[PreparedPrompt], left_out: str, width: int) -> Tensor:
    """The tokens (prompts, width) that take part, without the first, or the first and the last.

    Args:
        prompts: The prompts.
        left_out: ``"none"``, ``"first"`` or ``"ends"``.
        width: How many tokens the longest has.
    """
    lengths = torch.tensor([len(one.ids) for one in prompts])[:, None]
    at = torch.arange(width).expand(len(prompts), -1)
    allowed = at < lengths
    if left_out != "none":
        allowed = allowed & (at > 0)
    return allowed & (at < lengths - 1) if left_out == "ends" else allowed


def write_share(results: Mapping[str, Columns], what: str) -> list[str]:
    """The sentence that tells how many samples the model answers, for the notes."""
    answered = next(iter(results.values())).get("answered")
    if answered is None or not len(answered):
        return []
    return [f"The model gives the right answer to {int(answered.sum())} of {len(answered)} {what}."]


def start_rows(
    prompts: Sequence[PreparedPrompt], chances: Tensor, answered: Sequence[bool]
) -> list[Row]:
    """A row for each prompt: whether it is answered, with which probability, its length."""
    return [
        {
            "sample": one.name,
            "answered": float(is_right),
            "probability": chance,
            "tokens": len(one.ids),
        }
        for one, chance, is_right in zip(prompts, chances.tolist(), answered, strict=True)
    ]
