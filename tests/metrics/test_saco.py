"""SaCo against the four-patch example by hand, and against plain loops."""

import pytest
import torch

from whence import WhenceError
from whence.metrics.saco import compute_saco, group_units, sum_groups


def compute_plainly(scores, effects, count):
    """SaCo of one map: `effects(units)` is the drop when these units are replaced."""
    order = sorted(range(len(scores)), key=lambda unit: (-scores[unit], unit))
    total = len(order)
    groups = [
        [unit for rank, unit in enumerate(order) if at * total <= rank * count < (at + 1) * total]
        for at in range(count)
    ]
    sums = [sum(scores[unit] for unit in group) for group in groups]
    drops = [effects(group) for group in groups]
    above = below = 0.0
    for i in range(count - 1):
        for j in range(i + 1, count):
            weight = sums[i] - sums[j]
            above += weight if drops[i] >= drops[j] else -weight
            below += abs(weight)
    return above / below if below else 0.0


def test_four_patches_by_hand():
    scores = torch.tensor([[2.0, 4.0, 1.0, 3.0]])
    groups = group_units(scores, 4)
    assert groups.tolist() == [[2, 0, 3, 1]]
    sums = sum_groups(scores, groups, 4)
    assert sums.tolist() == [[4, 3, 2, 1]]
    # The patch with 3 costs less than that with 2, so that 1 of the weights of 10 counts against:
    # (4-3) + (4-2) + (4-1) - (3-2) + (3-1) + (2-1) = 8, of 10.
    drops = torch.tensor([[0.4, 0.1, 0.2, 0.0]])
    assert compute_saco(sums, drops).tolist() == [0.8]
    assert compute_saco(sums, -torch.tensor([[0.4, 0.3, 0.2, 0.1]])).tolist() == [-1]
    assert compute_saco(sums, torch.zeros(1, 4)).tolist() == [1], "equal drops break no order"


def test_two_groups_of_four_patches_by_hand():
    scores = torch.tensor([[2.0, 4.0, 1.0, 3.0]])
    groups = group_units(scores, 2)
    assert groups.tolist() == [[1, 0, 1, 0]]
    sums = sum_groups(scores, groups, 2)
    assert sums.tolist() == [[7, 3]]
    assert compute_saco(sums, torch.tensor([[0.1, 0.2]])).tolist() == [-1]


@pytest.mark.parametrize("kind", ["random", "ties", "negative", "constant"])
@pytest.mark.parametrize(("units", "count"), [(20, 10), (23, 10), (7, 7), (9, 2)])
def test_saco_is_the_plain_one(kind, units, count):
    torch.manual_seed(0)
    scores = torch.randn(5, units, dtype=torch.float64)
    if kind == "ties":
        scores = scores.round()
    elif kind == "negative":
        scores = -scores.abs()
    elif kind == "constant":
        scores = torch.full((5, units), 0.3, dtype=torch.float64)
    effect = torch.randn(5, units, dtype=torch.float64)
    groups = group_units(scores, count)
    sizes = torch.stack([(groups == at).sum(1) for at in range(count)], 1)
    assert sizes.max() - sizes.min() <= 1
    drops = torch.zeros(5, count, dtype=torch.float64).scatter_add_(1, groups, effect)
    found = compute_saco(sum_groups(scores, groups, count), drops)
    expected = [
        compute_plainly(one, lambda group, of=of: sum(of[unit] for unit in group), count)
        for one, of in zip(scores.tolist(), effect.tolist(), strict=True)
    ]
    if kind == "constant":
        expected = [0.0] * 5  # also where groups are not all of one size
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert ((found >= -1) & (found <= 1)).all()


def test_what_has_no_order_is_refused():
    with pytest.raises(WhenceError, match="no more than the 4 units, not 5"):
        group_units(torch.zeros(1, 4), 5)
    with pytest.raises(WhenceError, match="2 groups or more"):
        group_units(torch.zeros(1, 4), 1)
    with pytest.raises(WhenceError, match=r"\(1, 4\) and \(1, 3\)"):
        compute_saco(torch.zeros(1, 4), torch.zeros(1, 3))
    with pytest.raises(WhenceError, match="NaN"):
        compute_saco(torch.full((1, 4), torch.nan), torch.zeros(1, 4))
