import numpy as np
import pytest
import torch

from whence import WhenceError
from whence.metrics import curves as c
from whence.metrics.deletion import FRACTIONS, count_units, rank_units


def test_curves_and_areas_are_plain_sums():
    logits = torch.randn(5, 10, 4)
    logits[0, 0] = 1.0  # a tie: the first class wins
    labels = torch.tensor([0, 1, 2, 3, 0])
    found = c.compute_curves(logits, labels)
    fractions = (0.0, *FRACTIONS)
    for n, label in enumerate(labels.tolist()):
        total = 0.0
        for step in range(10):
            row = logits[n, step].double().numpy()
            chance = np.exp(row)[label] / np.exp(row).sum()
            assert found["accuracy"][n, step] == float(np.argmax(row) == label)
            assert found["logit"][n, step] == row[label]
            assert found["probability"][n, step] == pytest.approx(chance, abs=1e-14)
            if step:
                left, right = found["probability"][n, step - 1 : step + 1].tolist()
                total += (fractions[step] - fractions[step - 1]) * (left + right) / 2
        assert c.area_under_curve(found["probability"], fractions)[n] == pytest.approx(
            100 * total, abs=1e-11
        )
    assert found["accuracy"][0, 0] == 1
    assert c.area_under_curve(torch.ones(10), fractions) == pytest.approx(90)
    assert c.area_under_curve(found["accuracy"], fractions).mean() == pytest.approx(
        float(c.area_under_curve(found["accuracy"].mean(0), fractions))
    )


def test_the_area_between_is_positive_for_scores_that_find_what_counts():
    weights = torch.rand(20)
    scores = weights[None]
    fractions = (0.0, *FRACTIONS)

    def curve(order: str) -> torch.Tensor:
        deleted = rank_units(scores, order) < count_units(20, fractions)[:, None]
        return (weights * ~deleted).sum(1)[None]

    best = c.area_between_curves(curve("highest"), curve("lowest"), fractions)
    assert best > 0
    assert c.area_between_curves(curve("lowest"), curve("highest"), fractions) == -best


def test_accuracy_may_be_against_another_class():
    logits = torch.tensor([[[2.0, 1.0, 0.0]], [[0.0, 1.0, 2.0]]])
    found = c.compute_curves(logits, torch.tensor([1, 1]), torch.tensor([0, 0]))
    assert found["accuracy"].tolist() == [[1], [0]]
    assert found["logit"].tolist() == [[1], [1]]


def test_classes_that_hold_at_once_have_sigmoids():
    found = c.compute_curves(torch.tensor([[[2.0, 1.0]]]), torch.tensor([1]), multi_label=True)
    assert float(found["probability"]) == pytest.approx(1 / (1 + np.exp(-1)))


def test_srg_of_four_patches_by_hand():
    # The class's logit is the sum of the patches that are left: 4 + 3 + 2 + 1.
    weights = torch.tensor([[3.0, 1.0, 4.0, 2.0]])
    scores = torch.tensor([[0.3, 0.1, 0.9, 0.2]])
    shares = torch.tensor([0, 0.25, 0.5, 0.75, 1])

    def follow(scores, order):
        deleted = rank_units(scores, order)[:, None] < torch.arange(5)[:, None]
        return (weights[:, None] * ~deleted).sum(2)

    highest, lowest = follow(scores, "highest"), follow(scores, "lowest")
    assert highest.tolist() == [[10, 6, 3, 1, 0]]
    assert lowest.tolist() == [[10, 9, 7, 4, 0]]
    # 0.25 * (3 + 4 + 3): the curves meet at both ends.
    assert c.symmetric_relevance_gain(highest, lowest, shares).tolist() == [2.5]
    assert c.symmetric_relevance_gain(lowest, highest, shares).tolist() == [-2.5]
    same = torch.full((1, 4), 0.7)  # all in reading order, both ways: 3, 1, 4, 2
    highest, lowest = follow(same, "highest"), follow(same, "lowest")
    assert highest.tolist() == lowest.tolist() == [[10, 7, 6, 2, 0]]
    assert c.symmetric_relevance_gain(highest, lowest, shares).tolist() == [0]


def test_srg_is_a_plain_sum_over_uneven_shares():
    highest, lowest = torch.randn(3, 4), torch.randn(3, 4)
    shares = [0.0, 0.1, 0.1, 1.0]  # more steps than units: one is there twice
    found = c.symmetric_relevance_gain(highest, lowest, torch.tensor(shares))
    for n in range(3):
        apart = [float(lowest[n, i].double() - highest[n, i].double()) for i in range(4)]
        total = sum((shares[i + 1] - shares[i]) * (apart[i] + apart[i + 1]) / 2 for i in range(3))
        assert float(found[n]) == pytest.approx(total, abs=1e-6)


def test_bad_requests_are_refused():
    for call in (
        lambda: c.area_under_curve(torch.zeros(2, 5), FRACTIONS),
        lambda: c.area_under_curve(torch.zeros(2), (0.5, 0.5)),
        lambda: c.compute_curves(torch.zeros(2, 3, 4), torch.tensor([0, 4])),
        lambda: c.compute_curves(torch.zeros(2, 3, 4), torch.tensor([0])),
        lambda: c.symmetric_relevance_gain(torch.zeros(3), torch.zeros(2), torch.tensor([0, 1])),
        lambda: c.symmetric_relevance_gain(*torch.zeros(2, 3), torch.tensor([0, 0.5, 0.9])),
        lambda: c.symmetric_relevance_gain(*torch.zeros(2, 3), torch.tensor([0, 1.5, 1])),
    ):
        with pytest.raises(WhenceError):
            call()
