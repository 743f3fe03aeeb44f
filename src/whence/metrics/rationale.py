"""Compare scores of words with what people marked as evidence (ERASER: DeYoung et al., ACL 2020).

A word's score is the sum over its tokens, which `Explanation.words` gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from torch import Tensor

from whence._util.extras import import_extra
from whence.errors import WhenceError

KS = (10, 20, 30, 40, 50, 60, 70, 80)
"""How many words are taken, in turn."""

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""The fractions of words that comprehensiveness and sufficiency are averaged over."""

Span = tuple[int, int]


class TokenScores(TypedDict):
    """Figures of one text; lists have one entry for each k."""

    precision: list[float]
    recall: list[float]
    f1: list[float]
    iou_precision: list[float]
    iou_recall: list[float]
    iou_f1: list[float]
    auprc: float
    average_precision: float
    evidence_words: int


def compare_with_evidence(
    word_scores: Sequence[float], evidence: Sequence[Span], ks: Sequence[int] = KS
) -> TokenScores:
    """Compare the k words of highest scores with the evidence, for each k.

    Token precision, recall and F1 are of words. For IOU-F1 the k words are joined to spans of
    neighbours, and a span is right if its intersection with a span of the evidence is at least half
    of their union. AUPRC is the area under precision over recall, by the trapezoid rule as ERASER
    has it; average precision is the sum that does not interpolate.

    Args:
        word_scores: One for each word of the text; minus infinity for words that the model did not
            read, which are never taken and come last.
        evidence: What people marked: [start, end) in words. Spans may overlap.
        ks: How many words are taken; all that were read if these are fewer. Ties go by position.

    Returns:
        Numbers between 0 and 1, and `evidence_words`, how many words are marked. If it is 0, the
        text has no truth to compare with: all figures are 0, and the text is to be left out.
    """
    scores = np.asarray(word_scores, dtype=np.float64)
    truth = _mark_words(evidence, len(scores))
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise WhenceError("Scores of words have to be numbers, or minus infinity if unread.")
    spans = {(start, end) for start, end in evidence if end > start}
    read = np.isfinite(scores)
    order = np.argsort(-scores, kind="stable")[: read.sum()]
    below = np.nextafter(scores[read].min(initial=0), -np.inf)
    auprc, average = _precision_recall_areas(np.where(read, scores, below), truth)
    of_words, of_spans = [], []
    for k in ks:
        if k < 1:
            raise WhenceError(f"The number of words taken has to be 1 or more, not {k}.")
        taken = np.zeros(len(scores), dtype=bool)
        taken[order[:k]] = True
        of_words.append(_compute_f1(int((taken & truth).sum()), int(taken.sum()), int(truth.sum())))
        runs = join_words(taken.tolist())
        matched = sum(any(_iou(run, span) >= 0.5 for span in spans) for run in runs)
        of_spans.append(_compute_f1(matched, len(runs), len(spans)))
    precision, recall, f1 = np.reshape(of_words, (-1, 3)).T.tolist()
    iou_precision, iou_recall, iou_f1 = np.reshape(of_spans, (-1, 3)).T.tolist()
    return TokenScores(
        precision=precision,
        recall=recall,
        f1=f1,
        iou_precision=iou_precision,
        iou_recall=iou_recall,
        iou_f1=iou_f1,
        auprc=auprc,
        average_precision=average,
        evidence_words=int(truth.sum()),
    )


def join_words(taken: Sequence[bool]) -> list[Span]:
    """Join the words that are taken to spans [start, end): neighbours are one span."""
    steps = np.diff(np.asarray(taken, dtype=np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def comprehensiveness(full: Tensor, without: Tensor) -> Tensor:
    """Probability that the class loses without the highest words: the larger, the better.

    The mean (n,) over shares of p(full text) - p(text without that share), in float64.

    Args:
        full: (n,), the probability of the explained class.
        without: (n, shares), the same with each share of `SHARES` deleted.
    """
    return _mean_loss(full, without)


def sufficiency(full: Tensor, only: Tensor) -> Tensor:
    """Probability that the class loses with the highest words alone: the smaller, the better.

    The mean (n,) over shares of p(full text) - p(that share alone), in float64.

    Args:
        full: (n,), the probability of the explained class.
        only: (n, shares), the same with nothing but each share of `SHARES`.
    """
    return _mean_loss(full, only)


def _mean_loss(full: Tensor, changed: Tensor) -> Tensor:
    if full.dim() != 1 or changed.dim() != 2 or len(changed) != len(full) or not changed.shape[1]:
        raise WhenceError(
            f"Probabilities have to be (n,) and (n, shares), not {tuple(full.shape)} and "
            f"{tuple(changed.shape)}."
        )
    return (full.double()[:, None] - changed.double()).mean(1)


def _mark_words(evidence: Sequence[Span], words: int) -> np.ndarray:
    truth = np.zeros(words, dtype=bool)
    for start, end in evidence:
        if not 0 <= start <= end <= words:
            raise WhenceError(f"The evidence [{start}, {end}) does not lie in {words} words.")
        truth[start:end] = True
    return truth


def _precision_recall_areas(scores: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """AUPRC and average precision."""
    if not truth.any():
        return 0.0, 0.0
    metrics = import_extra("sklearn.metrics", "scikit-learn", "benchmark")
    precision, recall, _ = metrics.precision_recall_curve(truth, scores)
    average = metrics.average_precision_score(truth, scores)
    return float(metrics.auc(recall, precision)), float(average)


def _compute_f1(right: int, taken: int, marked: int) -> tuple[float, float, float]:
    """Precision, recall and their harmonic mean; 0 where there is nothing to divide by."""
    precision, recall = right / taken if taken else 0.0, right / marked if marked else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0


def _iou(one: Span, other: Span) -> float:
    both = max(0, min(one[1], other[1]) - max(one[0], other[0]))
    return both / (one[1] - one[0] + other[1] - other[0] - both)
