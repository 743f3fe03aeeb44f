"""Passages benchmark: whether the passage that holds a language model's answer is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.prompts import PreparedPrompt, pad_rows
from whence.benchmark.protocols.base import Metric, Row, add_columns
from whence.benchmark.protocols.prompts import (
    PromptProtocol,
    pick_probabilities,
    start_rows,
    write_share,
)
from whence.datasets.generated import make_text_dataset
from whence.datasets.planted_passages import MOST_PASSAGES, make_planted_passages
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.metrics.cues import find_passage
from whence.models import LoadedModel

if TYPE_CHECKING:
    from whence.datasets import Dataset, Sample

_PROMPTS = 400


@dataclass
class PassagesProtocol(PromptProtocol):
    """Of several passages, one holds the answer: is it the one with the highest score?

    Prompts are made: passages such as "Lily had a purple horse. They went to the park.", and a gap,
    "The next day, Lily went out with the purple". One counts where the model gives the right animal
    a probability of at least `least`. A passage's score is the sum over its tokens, or their mean.
    Recall of planted facts is how RULER (Hsieh et al., COLM 2024) tests models, and how methods
    that trace long contexts are compared.

    Attributes:
        passages: How many passages a prompt has.
        sentences: How many sentences that say nothing follow each fact; more make longer contexts.
        least: The least probability of the right answer with which a prompt counts.
    """

    name: ClassVar[str] = "passages"
    main: ClassVar[str] = "recall, sum"
    main_column: ClassVar[str] = "reciprocal_rank"

    passages: int = 5
    sentences: int = 1
    least: float = 0.5

    def __post_init__(self) -> None:
        """Refuse options that no prompt can have."""
        if not 2 <= self.passages <= MOST_PASSAGES:
            raise WhenceError(f"'passages' is a number from 2 to {MOST_PASSAGES}.")
        if self.sentences < 0 or not 0 <= self.least <= 1:
            raise WhenceError("'sentences' is a number from 0, and 'least' from 0 to 1.")

    @override
    def make_dataset(self, seed: int, limit: int | None) -> Dataset | None:
        shape = (self.passages, self.sentences)
        return make_text_dataset("planted", make_planted_passages(seed, limit or _PROMPTS, *shape))

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        if not first.passages or first.cues[:1] not in [(one,) for one in first.passages]:
            raise WhenceError(
                f"'{first.name}' does not say which of its passages holds the answer; leave --data "
                f"out, and the passages benchmark makes prompts that do."
            )

    @override
    def compute_rows(
        self, loaded: LoadedModel, samples: Sequence[PreparedPrompt], method: MethodSpecification
    ) -> list[Row]:
        answers, logits = self.list_answers(loaded, samples)
        chances = pick_probabilities(logits, [of[0] for of in answers])
        answered = (chances >= self.least).tolist()
        rows = start_rows(samples, chances, answered)
        chosen = [n for n, is_right in enumerate(answered) if is_right]
        if not chosen:
            return rows
        prompts = [samples[n] for n in chosen]
        scores = self.score_tokens(loaded, prompts, [answers[n] for n in chosen], method)
        marked = pad_rows([one.mark(one.sample.passages) for one in prompts], -1, scores.device)
        right = [one.sample.passages.index(one.sample.cues[0]) for one in prompts]
        found = find_passage(scores, marked, torch.tensor(right, device=scores.device))
        add_columns([rows[n] for n in chosen], dict(found))  # type: ignore[arg-type]
        return rows

    @override
    def list_metrics(self) -> list[Metric]:
        columns = {self.main: "by_sum", "recall, mean": "by_mean"}
        found = [
            Metric(name, (column,), "higher", factor=100, ranked=column == "by_sum")
            for name, column in columns.items()
        ]
        return [*found, Metric("reciprocal rank", ("reciprocal_rank",), "higher", factor=100)]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        return [
            *write_share(results, f"prompts, with a probability of {self.least:g} or more"),
            "Recall: the passage that holds the answer has the highest sum of scores, or the "
            "highest mean, in percent of the prompts that are answered; with its reciprocal rank "
            "by the sum. Ties count against it.",
        ]
