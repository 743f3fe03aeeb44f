import math

import numpy as np
import pytest
import torch
from scipy import stats

from whence import WhenceError
from whence.metrics.randomization import choose_bins, complexity_rise, histogram_entropy


def count_plainly(values: list[float], bins: int) -> list[int]:
    low, high = min(values), max(values)
    counts = [0] * bins
    for value in values:
        place = bins - 1
        for at in range(bins - 1):
            if value < low + (at + 1) * ((high - low) / bins):
                place = at
                break
        counts[place] += 1
    return counts


@pytest.mark.parametrize("bins", [1, 2, 7, 100])
def test_entropy_is_that_of_a_plain_histogram(bins):
    maps = torch.randn(5, 6, 9, dtype=torch.float64) ** 3
    maps[1] = (maps[1] * 2).round()  # ties, also on edges of bins
    maps[2, :3] = 0
    found = histogram_entropy(maps, bins)
    for one, entropy in zip(maps, found.tolist(), strict=True):
        values = one.flatten().tolist()
        counts = count_plainly(values, bins) if min(values) < max(values) else [len(values)]
        shares = [count / len(values) for count in counts if count]
        assert entropy == pytest.approx(-sum(p * math.log(p) for p in shares), abs=1e-12)
        peer = stats.entropy(np.histogram(one.numpy(), bins=bins)[0])
        assert entropy == pytest.approx(peer, abs=1e-12)


def test_entropy_at_its_ends():
    assert histogram_entropy(torch.full((2, 9), 3.5), 10).tolist() == [0, 0]
    assert histogram_entropy(torch.zeros(1, 1), 10).tolist() == [0]
    even = torch.arange(100.0)[None]
    assert histogram_entropy(even, 100).item() == pytest.approx(math.log(100))
    # Neither the scale nor the sign of the scores matters, and half precision is enough.
    assert histogram_entropy(even * -3e-30 + 0, 100).item() == pytest.approx(math.log(100))
    assert histogram_entropy(even.half(), 100).dtype == torch.float64
    for wrong in (torch.randn(3), torch.zeros(2, 0)):
        with pytest.raises(WhenceError, match="scores"):
            histogram_entropy(wrong)
    with pytest.raises(WhenceError, match="bin"):
        histogram_entropy(even, 0)
    with pytest.raises(WhenceError, match="NaN"):
        histogram_entropy(torch.tensor([[1.0, math.nan]]))


def test_bins_are_fewer_for_few_scores():
    assert [choose_bins(n) for n in (1, 2, 4, 5, 196, 10_000, 50_176)] == [1, 2, 2, 3, 14, 100, 100]
    assert choose_bins(50_176, 300) == 224
    with pytest.raises(WhenceError):
        choose_bins(0)


def test_rise_is_relative_and_never_nan():
    before, after = torch.tensor([2.0, 4.0, 0.0, 0.0]), torch.tensor([3.0, 1.0, 0.5, 0.0])
    assert complexity_rise(before, after).tolist() == [0.5, -0.75, 0, 0]
    with pytest.raises(WhenceError):
        complexity_rise(before, after[:2])
