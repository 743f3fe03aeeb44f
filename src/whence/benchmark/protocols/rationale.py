"""Rationale benchmark: whether words of high scores are those that people marked as evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.protocols.base import (
    BenchmarkProtocol,
    Curve,
    Metric,
    Row,
    add_columns,
    explain_batch,
)
from whence.benchmark.word_lists import UNREAD, WordListRunner, encode_words, sum_word_scores
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.layout import Tokens
from whence.methods import MethodSpecification
from whence.metrics.curves import compute_curves
from whence.metrics.deletion import count_units, delete_in_order, rank_units
from whence.metrics.rationale import (
    KS,
    SHARES,
    compare_with_evidence,
    comprehensiveness,
    sufficiency,
)
from whence.models import LoadedModel, PreparedBatch
from whence.models.forward import choose_chunk_size
from whence.models.loaded import select_sample

if TYPE_CHECKING:
    from whence.datasets import Sample

_List = Literal["precision", "recall", "f1", "iou_precision", "iou_recall", "iou_f1"]
_LISTS: tuple[_List, ...] = get_args(_List)


@dataclass
class RationaleProtocol(BenchmarkProtocol["Sample"]):
    """Words of highest scores against the words that people marked as evidence.

    After ERASER (DeYoung et al., ACL 2020) and Chefer, Gur, Wolf (CVPR 2021): the true class is
    explained, a word's score is the sum over its tokens, and the k words of highest scores are
    compared with the evidence, k = 10, 20, … 80. Words beyond the model's length have no score and
    are never chosen. Comprehensiveness and sufficiency say what the class's probability loses
    without the highest 1, 5, 10, 20, 50 % of the words that were read, or with nothing else, the
    mean over these; the remaining list of words is tokenised again.
    """

    name: ClassVar[str] = "rationale"
    kinds: ClassVar[tuple[str, ...]] = ("text",)
    main: ClassVar[str] = "token-F1"
    main_column: ClassVar[str] = "f1_mean"

    @override
    def describe_wrong_kind(self, kind: str) -> str:
        return (
            f"The rationale benchmark compares scores with words that people marked in texts; for "
            f"{kind}s there are `whence benchmark perturbation` and `segmentation`."
        )

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        if not first.words or not first.evidence:
            raise WhenceError(
                f"'{first.name}' has no words that people marked as evidence, which the rationale "
                f"benchmark compares scores with. `whence benchmark words` deletes words of any "
                f"texts."
            )
        if not getattr(loaded.tokenizer, "is_fast", False):
            raise WhenceError(
                f"The tokenizer of '{loaded.title}' does not tell which word a token belongs to; a "
                f"fast tokenizer is needed."
            )

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> Sample:
        return sample

    @override
    def compute_rows(
        self, loaded: LoadedModel, samples: Sequence[Sample], method: MethodSpecification
    ) -> list[Row]:
        targets = [self._find_target(loaded, sample) for sample in samples]
        encoded = encode_words(loaded, [sample.words for sample in samples])
        batch = encoded.batch.to(loaded.device)
        explanation = explain_batch(loaded, batch, method, target=targets)
        located = explanation
        if (locating := method.to_locating()) != method:
            located = explain_batch(loaded, batch, locating, target=targets)
        scores, places = (
            [
                sum_word_scores(one.scores[at], encoded.word_ids[at], len(sample.words))
                for at, sample in enumerate(samples)
            ]
            for one in (explanation, located)
        )
        rows = [
            self._compare_with_evidence(sample, target, one)
            for sample, target, one in zip(samples, targets, places, strict=True)
        ]
        self._delete_words(loaded, samples, torch.tensor(targets), scores, explanation, rows)
        for row, target, logits in zip(rows, targets, explanation.logits, strict=True):
            row["correct"] = float(int(logits.argmax()) == target)
        return rows

    def _find_target(self, loaded: LoadedModel, sample: Sample) -> int:
        target = self.labels.find_index(loaded, sample)
        if target is None:
            raise WhenceError(f"'{sample.name}' has no label, and its true class is explained.")
        return target

    def _compare_with_evidence(self, sample: Sample, target: int, scores: list[float]) -> Row:
        row: Row = {
            "sample": sample.name,
            "label": target,
            "words": len(scores),
            "read": sum(score > UNREAD for score in scores),
        }
        found = compare_with_evidence(scores, sample.evidence, KS)
        if not found["evidence_words"]:
            return row  # nothing to be right or wrong about
        row |= {name: list(found[name]) for name in _LISTS}
        row |= {f"{name}_mean": sum(found[name]) / len(KS) for name in _LISTS}
        row |= {f"f1_at_{k}": value for k, value in zip(KS, found["f1"], strict=True)}
        return row | {"auprc": found["auprc"]}

    def _delete_words(
        self,
        loaded: LoadedModel,
        samples: Sequence[Sample],
        targets: Tensor,
        scores: Sequence[Sequence[float]],
        explanation: Explanation,
        rows: Sequence[Row],
    ) -> None:
        """Add the probabilities without the words of highest scores, and with these alone."""
        padded = nn.utils.rnn.pad_sequence(
            [torch.tensor(one, dtype=torch.float64) for one in scores], True, UNREAD
        )
        read = padded > UNREAD
        words = read.sum(1)
        counts = count_units(words, SHARES, "up")
        ranks = rank_units(padded, "highest", read)
        orders = torch.cat([ranks, words[:, None] - 1 - ranks])
        logits = delete_in_order(
            orders.masked_fill(~read.repeat(2, 1), -1),  # unread words are deleted at every step
            torch.cat([counts, words[:, None] - counts]),
            WordListRunner(loaded, [sample.words for sample in samples]),
            torch.arange(len(samples)).repeat(2),
            chunk_size=choose_chunk_size(loaded),
        )
        chances = compute_curves(logits, targets.repeat(2))["probability"].cpu()
        without, only = chances.reshape(2, len(samples), -1)
        full = compute_curves(explanation.logits[:, None], targets)["probability"][:, 0].cpu()
        columns = {
            "probability": full,
            "comprehensiveness": comprehensiveness(full, without),
            "sufficiency": sufficiency(full, only),
            "without": without,
            "only": only,
        }
        add_columns(rows, columns)

    @override
    def list_metrics(self) -> list[Metric]:
        higher = {
            "token-F1": "f1_mean",
            "precision": "precision_mean",
            "recall": "recall_mean",
            "AUPRC": "auprc",
            "IOU-F1": "iou_f1_mean",
            "comprehensiveness": "comprehensiveness",
        }
        ranked = ("token-F1", "comprehensiveness")
        found = [
            Metric(name, (column,), "higher", factor=100, ranked=name in ranked)
            for name, column in higher.items()
        ]
        found.append(Metric("sufficiency", ("sufficiency",), "lower", factor=100, ranked=True))
        return found + [
            Metric(f"token-F1, k={k}", (f"f1_at_{k}",), "higher", factor=100, shown=False)
            for k in KS
        ]

    @override
    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:
        titles = {"f1": "token-F1", "precision": "precision", "recall": "recall"}
        found = [Curve(t, c, tuple(map(float, KS)), "words chosen") for c, t in titles.items()]
        erased = {"without": "without the highest words", "only": "with the highest words alone"}
        return found + [
            Curve(f"probability {title}", column, SHARES, "share of the words")
            for column, title in erased.items()
        ]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        first = next(iter(results.values()))
        cut = int((first["read"] < first["words"]).sum()) if "read" in first else 0
        notes = [
            "All in percent. The true class is explained. Token-F1, precision, recall and IOU-F1 "
            "are means over k = 10, 20, … 80 chosen words and over texts; table.csv has each k. "
            "These judge a method's reading of where a target lies, where it has one."
        ]
        if "correct" in first:
            notes.append(f"The model is right on {100 * float(first['correct'].mean()):.2f} %.")
        if cut:
            notes.append(
                f"{cut} text(s) are longer than the model reads; words beyond have no score and "
                f"are never chosen."
            )
        return notes

    @override
    def explain_example(
        self, loaded: LoadedModel, sample: Sample, method: MethodSpecification
    ) -> tuple[str, Explanation]:
        encoded = encode_words(loaded, [sample.words])
        batch, target = encoded.batch, self._find_target(loaded, sample)
        explanation = explain_batch(loaded, batch.to(loaded.device), method, target=[target])
        strings = loaded.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
        explanation.tokens = Tokens([strings], encoded.word_ids, [list(sample.words)])
        return " ".join(sample.words), select_sample(explanation, 0, PreparedBatch(batch, [[]]))
