"""Cues benchmark: whether the word that a language model's next word follows from is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.prompts import PreparedPrompt, pad_rows
from whence.benchmark.protocols.base import Metric, Row, add_columns
from whence.benchmark.protocols.prompts import (
    PromptProtocol,
    mark_candidates,
    pick_probabilities,
    start_rows,
    write_share,
)
from whence.datasets.cue_sentences import CUE_KINDS, CueKind, make_cue_sentences
from whence.datasets.generated import make_text_dataset
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.metrics.cues import compare_with_cues
from whence.models import LoadedModel

if TYPE_CHECKING:
    from whence.datasets import Dataset, Sample

_SENTENCES = 300
# Which tokens are ranked, and how the table calls it.
_CANDIDATES = {"none": "", "first": ", no first token", "ends": ", no first and last token"}
_FIGURES = {"first": "cue first", "reciprocal_rank": "reciprocal rank", "share": "share on cue"}


@dataclass
class CuesProtocol(PromptProtocol):
    """Sentences whose next word follows from a known word, the cue: how high is its score?

    Sentences of five kinds are made: capitals ("The capital of *France* is"), who gets a gift
    ("When *Mary* and John went to the shop, John gave a drink to"), agreement ("The *dogs* near the
    tree" … were), who owns what, and sequences ("Monday, Tuesday, *Wednesday*,"). One counts where
    the model's next word is the right one; for agreement, where it prefers the right verb to the
    wrong one. Figures are of all tokens; without the first one, which is an attention sink in many
    models; and without the first and the last, from which the answer is read.

    Attributes:
        sentences: The kinds of sentences.
    """

    name: ClassVar[str] = "cues"
    main: ClassVar[str] = "reciprocal rank"
    main_column: ClassVar[str] = "reciprocal_rank_none"

    sentences: tuple[CueKind, ...] = CUE_KINDS

    @override
    def make_dataset(self, seed: int, limit: int | None) -> Dataset | None:
        made = make_cue_sentences(seed, limit or _SENTENCES, self.sentences)
        return make_text_dataset("sentences", made)

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        if not first.cues or not first.answer:
            raise WhenceError(
                f"'{first.name}' does not say which word its answer follows from; leave --data "
                f"out, and the cues benchmark makes sentences that do."
            )

    @override
    def compute_rows(
        self, loaded: LoadedModel, samples: Sequence[PreparedPrompt], method: MethodSpecification
    ) -> list[Row]:
        answers, logits = self.list_answers(loaded, samples)
        chances = pick_probabilities(logits, [of[0] for of in answers])
        best = logits.argmax(-1).tolist()
        # Without a rival, all other tokens are.
        rivals = [best[n] if one.rival is None else one.rival for n, one in enumerate(samples)]
        others = pick_probabilities(logits, rivals)
        answered = [
            rivals[n] == answers[n][0] or bool(chances[n] > others[n]) for n in range(len(samples))
        ]
        rows = start_rows(samples, chances, answered)
        chosen = [n for n, is_right in enumerate(answered) if is_right]
        if not chosen:
            return rows
        prompts = [samples[n] for n in chosen]
        scores = self.score_tokens(loaded, prompts, [answers[n] for n in chosen], method)
        marked = pad_rows([one.mark(one.sample.cues) for one in prompts], -1, scores.device) >= 0
        of_chosen = [rows[n] for n in chosen]
        for left_out in _CANDIDATES:
            allowed = mark_candidates(prompts, left_out, scores.shape[1]).to(scores.device)
            found = compare_with_cues(scores, marked, allowed)
            add_columns(of_chosen, {f"{name}_{left_out}": found[name] for name in _FIGURES})  # type: ignore[literal-required]
        for row in of_chosen:
            kind = row["sample"].rpartition("-")[0]
            row[f"first_{kind}"] = row["first_none"]
        return rows

    @override
    def list_metrics(self) -> list[Metric]:
        found = [
            Metric(
                f"{title}{end}",
                (f"{figure}_{left_out}",),
                "higher",
                factor=100,
                shown=left_out != "ends",
                ranked=figure == "reciprocal_rank" and left_out != "ends",
            )
            for left_out, end in _CANDIDATES.items()
            for figure, title in _FIGURES.items()
        ]
        return found + [
            Metric(f"cue first, {kind}", (f"first_{kind}",), "higher", factor=100, shown=False)
            for kind in self.sentences
        ]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        first = next(iter(results.values()))
        by_kind = []
        for kind in self.sentences:
            of_kind = [str(name).startswith(f"{kind}-") for name in first["sample"]]
            if any(of_kind) and "answered" in first:
                by_kind.append(f"{kind} {int(first['answered'][of_kind].sum())} of {sum(of_kind)}")
        return [
            *write_share(results, f"sentences ({', '.join(by_kind)}); the others do not count"),
            "In percent: how often the cue has the highest score, its reciprocal rank, and its "
            "share of all positive scores; of all tokens, and without the first. table.csv has "
            "them without the first and the last, and by the kind of sentence. Ties count against "
            "the cue.",
        ]
