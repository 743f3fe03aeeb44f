import itertools
import math

import pytest
import torch
from sklearn.metrics import auc, average_precision_score, precision_recall_curve

from whence import WhenceError
from whence.metrics import rationale as r

KEYS = ("precision", "recall", "f1", "iou_precision", "iou_recall", "iou_f1")


def plainly(scores: list[float], evidence: list[tuple[int, int]], k: int) -> dict[str, float]:
    """Written out with sets of words."""
    readable = [word for word in range(len(scores)) if scores[word] > -math.inf]
    taken = set(sorted(readable, key=lambda word: (-scores[word], word))[:k])
    truth = {word for start, end in evidence for word in range(start, end)}
    spans = {tuple(range(*span)) for span in evidence} - {()}
    runs: list[list[int]] = []
    for word in sorted(taken):
        if word - 1 in taken:
            runs[-1].append(word)
        else:
            runs.append([word])
    matched = [
        any(len({*run} & {*span}) / len({*run} | {*span}) >= 0.5 for span in spans) for run in runs
    ]

    def figures(right: int, said: int, true: int) -> tuple[float, float, float]:
        precision, recall = right / said if said else 0, right / true if true else 0
        both = precision + recall
        return precision, recall, 2 * precision * recall / both if both else 0

    words = figures(len(taken & truth), len(taken), len(truth))
    pieces = figures(sum(matched), len(runs), len(spans))
    return dict(zip(KEYS, (*words, *pieces), strict=True))


def text(number: int) -> tuple[list[float], list[tuple[int, int]]]:
    generator = torch.Generator().manual_seed(number)
    words = int(torch.randint(5, 200, (), generator=generator))
    levels = (3, 50, 100_000)[number % 3]
    scores = torch.randint(0, levels, (words,), generator=generator).double() / levels
    evidence = []
    for _ in range(number % 4):
        start, length = torch.randint(0, words, (2,), generator=generator).tolist()
        evidence.append((start, min(words, start + length % 12)))
        scores[slice(*evidence[-1])] += 0.6
    if number % 5 == 0:
        scores[words // 2 :] = -math.inf
    return scores.tolist(), evidence


@pytest.mark.parametrize("number", range(30))
def test_figures_are_the_plain_ones(number):
    scores, evidence = text(number)
    ks = (1, 2, 5, *r.KS)
    found = r.compare_with_evidence(scores, evidence, ks)
    for place, k in enumerate(ks):
        for key, value in plainly(scores, evidence, k).items():
            assert found[key][place] == pytest.approx(value, abs=1e-15), (key, k)
    truth = [any(start <= word < end for start, end in evidence) for word in range(len(scores))]
    assert found["evidence_words"] == sum(truth)
    if any(truth):
        finite = [score if score > -math.inf else -1e6 for score in scores]
        precision, recall, _ = precision_recall_curve(truth, finite)
        assert found["auprc"] == pytest.approx(auc(recall, precision), abs=1e-14)
        average = average_precision_score(truth, finite)
        assert found["average_precision"] == pytest.approx(average, abs=1e-14)


def test_by_hand():
    scores = [0.0, 5.0, 4.0, 3.0, 0.0, 9.0]
    found = r.compare_with_evidence(scores, [(1, 4), (4, 5)], [2, 4])
    assert found["precision"] == [1 / 2, 3 / 4]  # words 5, 1; then 5, 1, 2, 3
    assert found["recall"] == [1 / 4, 3 / 4]
    assert found["f1"] == pytest.approx([1 / 3, 3 / 4])
    assert found["iou_precision"] == [0, 1 / 2]  # spans [1,2) [5,6); then [1,4) [5,6)
    assert found["iou_recall"] == [0, 1 / 2]
    assert found["iou_f1"] == [0, 1 / 2]
    assert r.compare_with_evidence(scores, [(5, 6)], [1])["auprc"] == 1


def test_ks_are_those_of_the_protocol():
    assert tuple(range(10, 81, 10)) == r.KS
    assert len(r.compare_with_evidence([1.0] * 100, [(0, 3)])["f1"]) == 8


def test_without_evidence_all_is_zero_and_says_so():
    found = r.compare_with_evidence([1.0, 2.0], [], [1])
    assert found["evidence_words"] == 0
    assert found["auprc"] == found["average_precision"] == 0
    assert all(found[key] == [0.0] for key in KEYS)
    assert r.compare_with_evidence([], [], [1])["f1"] == [0.0]
    assert r.compare_with_evidence([-math.inf] * 3, [(0, 1)], [1])["f1"] == [0.0]


def test_a_span_is_never_right_twice():
    for taken in itertools.product([0.0, 1.0], repeat=7):
        if any(taken):
            found = r.compare_with_evidence(taken, [(2, 6)], [int(sum(taken))])
            assert found["iou_recall"][0] <= 1


def test_neighbours_are_one_span():
    assert r.join_words([True, True, False, True]) == [(0, 2), (3, 4)]
    assert r.join_words([False]) == r.join_words([]) == []


def test_comprehensiveness_and_sufficiency_are_mean_losses():
    full, changed = torch.rand(4), torch.rand(4, len(r.SHARES))
    for metric in (r.comprehensiveness, r.sufficiency):
        found = metric(full, changed)
        for n in range(4):
            expected = sum(float(full[n]) - float(p) for p in changed[n]) / 5
            assert found[n] == pytest.approx(expected, abs=1e-15)


def test_bad_requests_are_refused():
    for call in (
        lambda: r.compare_with_evidence([1.0], [(0, 2)]),
        lambda: r.compare_with_evidence([1.0, 2.0], [(1, 0)]),
        lambda: r.compare_with_evidence([math.nan], []),
        lambda: r.compare_with_evidence([math.inf], []),
        lambda: r.compare_with_evidence([1.0], [(0, 1)], [0]),
        lambda: r.sufficiency(torch.rand(3), torch.rand(2, 5)),
    ):
        with pytest.raises(WhenceError):
            call()
