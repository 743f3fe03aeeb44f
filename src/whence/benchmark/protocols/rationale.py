"""Rationale: whether the words that were found are those that people marked."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from whence.benchmark.columns import Columns
from whence.benchmark.protocols.base import Curve, Metric, Protocol, Row, explained, has, present
from whence.errors import WhenceError
from whence.layout import Tokens
from whence.methods.specification import Chosen
from whence.metrics.rationale import KS, SHARES, comprehensiveness, sufficiency, token_scores, top
from whence.models import LoadedModel
from whence.models.forward import in_parts, logits_of, rows_at_once
from whence.models.loaded import one_sample

if TYPE_CHECKING:
    from whence.datasets import Sample

_UNREAD = -math.inf
_LISTS = ("precision", "recall", "f1", "iou_precision", "iou_recall", "iou_f1")


@dataclass
class Rationale(Protocol):
    """Words of highest scores against the words that people marked as evidence.

    After ERASER (DeYoung et al., ACL 2020) and Chefer, Gur, Wolf (CVPR 2021): the true class is
    explained, a word's score is the sum over its tokens, and the k words of highest scores are
    compared with the evidence, k = 10, 20, … 80. Words beyond the model's length have no score and
    are never chosen. Comprehensiveness and sufficiency say what the class's probability loses
    without the highest 1, 5, 10, 20, 50 % of the words that were read, or with nothing else, the
    mean over these; removed words are taken out of the list of words, which is tokenised again.
    """

    name: ClassVar[str] = "rationale"
    title: ClassVar[str] = "Rationale"
    kinds: ClassVar[tuple[str, ...]] = ("text",)
    main: ClassVar[str] = "token-F1"
    main_column: ClassVar[str] = "f1_mean"

    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:  # noqa: D102
        super().check(loaded, kind, first)
        if not first.words or not first.evidence:
            raise WhenceError(
                f"'{first.name}' has no words that people marked as evidence, which the rationale "
                f"benchmark compares scores with."
            )
        if not getattr(loaded.tokenizer, "is_fast", False):
            raise WhenceError(
                f"The tokenizer of '{loaded.name}' does not tell which word a token belongs to; a "
                f"fast tokenizer is needed."
            )

    def rows(  # noqa: D102
        self, loaded: LoadedModel, samples: Sequence[Any], method: Chosen
    ) -> list[Row]:
        targets = [self._target(loaded, sample) for sample in samples]
        batch = encoded(loaded, [sample.words for sample in samples])
        explanation = explained(loaded, batch.to(loaded.device), method, target=targets)
        numbers = word_numbers(batch, [sample.words for sample in samples])
        scores = [
            word_scores(explanation.scores[at], numbers[at], len(sample.words))
            for at, sample in enumerate(samples)
        ]
        full = chances(explanation.logits, targets)
        rows = [
            self._compared(sample, target, one)
            for sample, target, one in zip(samples, targets, scores, strict=True)
        ]
        self._erased(loaded, samples, targets, scores, full, rows)
        for row, target, logits in zip(rows, targets, explanation.logits, strict=True):
            row["correct"] = float(int(logits.argmax()) == target)
        return rows

    def _target(self, loaded: LoadedModel, sample: Sample) -> int:
        target = self.labels.index(loaded, sample)
        if target is None:
            raise WhenceError(f"'{sample.name}' has no label, and its true class is explained.")
        return target

    def _compared(self, sample: Sample, target: int, scores: list[float]) -> Row:
        row: Row = {
            "sample": sample.name,
            "label": target,
            "words": len(scores),
            "read": sum(score > _UNREAD for score in scores),
        }
        found: Any = token_scores(scores, sample.evidence, KS)
        if not found["evidence_words"]:
            return row  # nothing to be right or wrong about
        row |= {name: list(found[name]) for name in _LISTS}
        row |= {f"{name}_mean": sum(found[name]) / len(KS) for name in _LISTS}
        row |= {f"f1_at_{k}": value for k, value in zip(KS, found["f1"], strict=True)}
        return row | {"auprc": found["auprc"]}

    def _erased(
        self,
        loaded: LoadedModel,
        samples: Sequence[Any],
        targets: Sequence[int],
        scores: Sequence[list[float]],
        full: Tensor,
        rows: Sequence[Row],
    ) -> None:
        """Add what the class loses without the words of highest scores, and with them alone."""
        texts: list[list[str]] = []
        for sample, one in zip(samples, scores, strict=True):
            read = [at for at, score in enumerate(one) if score > _UNREAD]
            values = torch.tensor([[one[at] for at in read]], dtype=torch.float64)
            chosen = [top(values, share)[0].tolist() for share in SHARES]
            for keep in (False, True):
                for highest in chosen:
                    pairs = zip(read, highest, strict=True)
                    texts.append([sample.words[at] for at, is_top in pairs if is_top == keep])
        classes = [target for target in targets for _ in range(2 * len(SHARES))]
        found = text_chances(loaded, texts, classes).reshape(len(rows), 2, len(SHARES))
        lost = comprehensiveness(full, found[:, 0]), sufficiency(full, found[:, 1])
        for at, row in enumerate(rows):
            row["probability"] = float(full[at])
            row["comprehensiveness"], row["sufficiency"] = float(lost[0][at]), float(lost[1][at])
            row["without"], row["only"] = found[at, 0].tolist(), found[at, 1].tolist()

    def metrics(self, results: Mapping[str, Columns]) -> list[Metric]:  # noqa: D102
        found = [
            Metric("token-F1", ("f1_mean",), "higher", factor=100),
            Metric("precision", ("precision_mean",), "higher", factor=100),
            Metric("recall", ("recall_mean",), "higher", factor=100),
            Metric("AUPRC", ("auprc",), "higher", factor=100),
            Metric("IOU-F1", ("iou_f1_mean",), "higher", factor=100),
            Metric("comprehensiveness", ("comprehensiveness",), "higher", factor=100),
            Metric("sufficiency", ("sufficiency",), "lower", factor=100),
        ]
        found += [
            Metric(f"token-F1, k={k}", (f"f1_at_{k}",), "higher", factor=100, shown=False)
            for k in KS
        ]
        return present(results, found)

    def curves(self, results: Mapping[str, Columns]) -> list[Curve]:  # noqa: D102
        titles = {"f1": "token-F1", "precision": "precision", "recall": "recall"}
        found = [Curve(t, c, tuple(map(float, KS)), "words chosen") for c, t in titles.items()]
        erased = {"without": "without the highest words", "only": "with the highest words alone"}
        found += [
            Curve(f"probability {title}", column, SHARES, "share of the words")
            for column, title in erased.items()
        ]
        return [curve for curve in found if has(results, curve.column)]

    def notes(self, results: Mapping[str, Columns]) -> list[str]:  # noqa: D102
        first = next(iter(results.values()))
        cut = int((first["read"] < first["words"]).sum()) if "read" in first else 0
        notes = [
            "All in percent. The true class is explained. Token-F1, precision, recall and IOU-F1 "
            "are means over k = 10, 20, … 80 chosen words and over texts; table.csv has each k."
        ]
        if "correct" in first:
            notes.append(f"The model is right on {100 * float(first['correct'].mean()):.2f} %.")
        if cut:
            notes.append(
                f"{cut} text(s) are longer than the model reads; words beyond have no score and "
                f"are never chosen."
            )
        return notes

    def example(  # noqa: D102
        self, loaded: LoadedModel, sample: Sample, method: Chosen
    ) -> tuple[Any, Any]:
        from whence.models import Prepared

        batch = encoded(loaded, [sample.words])
        target = self._target(loaded, sample)
        explanation = explained(loaded, batch.to(loaded.device), method, target=target)
        numbers = word_numbers(batch, [sample.words])
        strings = loaded.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
        explanation.tokens = Tokens([strings], numbers, [list(sample.words)])
        return " ".join(sample.words), one_sample(explanation, 0, Prepared(batch, [""], []))


def encoded(loaded: LoadedModel, texts: Sequence[Sequence[str]]) -> Any:
    """Lists of words as the model takes them, cut at its length."""
    how = {
        "truncation": True,
        "max_length": getattr(loaded.preparation, "max_length", 512),
        "padding": True,
        "return_tensors": "pt",
    }
    words = [list(text) for text in texts]
    try:
        batch = loaded.tokenizer(words, is_split_into_words=True, **how)
    except (AssertionError, ValueError):
        # Tokenizers that mark spaces refuse words without them, unless they were made for that.
        batch = loaded.tokenizer([" ".join(text) for text in words], **how)
        batch.joined = True
    return batch


def word_numbers(batch: Any, texts: Sequence[Sequence[str]]) -> list[list[int | None]]:
    """For each token the number of its word in the list of words; None for special tokens."""
    encodings = batch.encodings
    if not getattr(batch, "joined", False):
        return [list(one.word_ids) for one in encodings]
    found = []
    for one, words in zip(encodings, texts, strict=True):
        starts = [0]
        for word in words:
            starts.append(starts[-1] + len(word) + 1)
        # A token may begin with the space before its word, so its last letter tells.
        found.append(
            [
                None if word is None or end <= start else bisect.bisect_right(starts, end - 1) - 1
                for word, (start, end) in zip(one.word_ids, one.offsets, strict=True)
            ]
        )
    return found


def word_scores(scores: Tensor, numbers: Sequence[int | None], words: int) -> list[float]:
    """The sum of scores over the tokens of each word; minus infinity for words without a token."""
    found = [_UNREAD] * words
    for score, number in zip(scores.double().tolist(), numbers, strict=True):
        if number is not None:
            found[number] = score + (0.0 if found[number] == _UNREAD else found[number])
    return found


def chances(logits: Tensor, targets: Sequence[int]) -> Tensor:
    """Probabilities of a class for each text, (rows,)."""
    at = torch.tensor(targets, device=logits.device)[:, None]
    return logits.double().softmax(-1).gather(1, at)[:, 0].cpu()


def text_chances(
    loaded: LoadedModel, texts: Sequence[Sequence[str]], targets: Sequence[int]
) -> Tensor:
    """Probabilities of a class for lists of words, (rows,), long texts together."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))

    def work(part: range) -> Tensor:
        rows = [order[at] for at in part]
        batch = encoded(loaded, [texts[at] for at in rows]).to(loaded.device)
        return chances(logits_of(loaded, dict(batch)), [targets[at] for at in rows])

    found = in_parts(len(order), rows_at_once(loaded), work, loaded.device)
    placed = torch.empty_like(found)
    placed[torch.tensor(order)] = found
    return placed
