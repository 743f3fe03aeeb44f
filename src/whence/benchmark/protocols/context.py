"""Context benchmark: what a language model's answer loses without the highest tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.prompts import AnswerRunner, PreparedPrompt, Removal
from whence.benchmark.protocols.base import Curve, Metric, Row, add_columns
from whence.benchmark.protocols.prompts import PromptProtocol, mark_candidates
from whence.datasets.generated import make_text_dataset
from whence.datasets.planted_passages import make_planted_passages
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.metrics.context import SHARES, compute_drops
from whence.metrics.deletion import count_units, delete_in_order
from whence.metrics.words import rank_words
from whence.models import LoadedModel

if TYPE_CHECKING:
    from whence.datasets import Dataset, Sample

_PROMPTS = 200
_STAYS = {
    "none": "Any token may be removed.",
    "first": "The first token of each prompt stays.",
    "ends": "The first and the last token of each prompt stay.",
}


@dataclass
class ContextProtocol(PromptProtocol):
    """The log-probability of the answer falls as the highest tokens of the context are removed.

    The highest 1, 5, 10, 20, 50 % of the tokens, rounded up, are removed. The figure is the mean
    drop over these, in nats: the larger, the better. It is comprehensiveness (DeYoung et al., ACL
    2020) in log-probabilities. Where a text has no answer, it is the model's own next token.

    Attributes:
        replace: What becomes of tokens: the mean of all embeddings, the token of unknown words, or
            they are deleted, so that the text closes up.
        stays: Which tokens are never removed: none, the first, or the first and the last, from
            which the answer is read.
    """

    name: ClassVar[str] = "context"
    main: ClassVar[str] = "drop"
    main_column: ClassVar[str] = "drop"

    replace: tuple[Removal, ...] = ("mean", "delete")
    stays: Literal["none", "first", "ends"] = "first"

    @override
    def make_dataset(self, seed: int, limit: int | None) -> Dataset | None:
        return make_text_dataset("planted", make_planted_passages(seed, limit or _PROMPTS))

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        prompts = [self.prepare(loaded, first)]
        for removal in self.replace:
            AnswerRunner(loaded, prompts, [[0]], removal)

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedPrompt:
        prepared = super().prepare(loaded, sample)
        if len(prepared.ids) < 4:
            raise WhenceError(f"The prompt '{sample.name}' has too few tokens to remove some.")
        return prepared

    @override
    def compute_rows(
        self, loaded: LoadedModel, samples: Sequence[PreparedPrompt], method: MethodSpecification
    ) -> list[Row]:
        answers, logits = self.list_answers(loaded, samples)
        scores = self.score_tokens(loaded, samples, answers, method)
        allowed = mark_candidates(samples, self.stays, scores.shape[1])
        lengths = torch.tensor([len(one.ids) for one in samples])
        ranks = rank_words(scores, lengths, "highest", allowed)
        counts = count_units(allowed.sum(1), (0.0, *SHARES), "up")
        rows: list[Row] = [
            {"sample": one.name, "tokens": len(one.ids), "answered": float(best == answer[0])}
            for one, answer, best in zip(samples, answers, logits.argmax(-1).tolist(), strict=True)
        ]
        means = []
        for removal in self.replace:
            runner = AnswerRunner(loaded, samples, answers, removal)
            numbers = torch.arange(len(samples))
            found = delete_in_order(ranks, counts, runner, numbers, chunk_size=runner.chunk_size)
            full, without = found[:, 0, 0], found[:, 1:, 0]
            drops = compute_drops(full, without)
            means.append(drops.mean(1))
            columns = {f"drops_{removal}": drops, f"drop_{removal}": means[-1]}
            columns |= {
                f"drop_{removal}_{share:g}": drop
                for share, drop in zip(SHARES, drops.T, strict=True)
            }
            add_columns(rows, columns | {"log_probability": full})
        add_columns(rows, {self.main_column: torch.stack(means).mean(0)})
        return rows

    @override
    def list_metrics(self) -> list[Metric]:
        shown = [
            Metric(f"drop, {removal}", (f"drop_{removal}",), "higher", ranked=True)
            for removal in self.replace
        ]
        hidden = [
            Metric(
                f"drop, {removal}, {100 * share:g} %",
                (f"drop_{removal}_{share:g}",),
                "higher",
                shown=False,
            )
            for removal in self.replace
            for share in SHARES
        ]
        return [*shown, *hidden, Metric(self.main, (self.main_column,), "higher", shown=False)]

    @override
    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:
        return [
            Curve(
                f"drop of the log-probability, {removal}",
                f"drops_{removal}",
                SHARES,
                "share of the tokens removed",
                percent=False,
            )
            for removal in self.replace
        ]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        what = "answer's first token" if self.target == "token" else "answer"
        explained = "its logit" if self.target == "token" else "its log-probability"
        first = next(iter(results.values()))
        notes = [
            f"By how many nats the log-probability of the {what} falls when the highest 1, 5, 10, "
            f"20, 50 % of the prompt's tokens are removed, the mean over these; {explained} is "
            f"explained. {_STAYS[self.stays]}"
        ]
        if "answered" in first:
            own = 100 * float(first["answered"].mean())
            notes.append(f"It is the model's own next token in {own:.1f} %.")
        return notes
