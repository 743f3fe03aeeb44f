"""Figures of rounds against numpy's."""

import numpy as np
import pytest
from benchmarks.timing.figures import divide_rounds, is_noisy, measure_spread, summarize

ROUNDS = [4.1, 3.9, 4.0, 7.5, 4.2, 4.05, 3.95]
FORWARDS = [1.0, 1.1, 0.9, 2.0, 1.0, 1.05, 0.95]


@pytest.mark.parametrize("count", range(2, len(ROUNDS) + 1))
def test_spread_is_half_the_distance_of_quartiles_over_the_median(count):
    low, middle, high = np.percentile(ROUNDS[:count], [25, 50, 75])
    assert measure_spread(ROUNDS[:count]) == pytest.approx(100 * (high - low) / 2 / middle)


def test_one_round_has_no_spread():
    assert measure_spread([3.0]) is None
    assert not is_noisy(None)


def test_a_row_is_compared_with_its_baseline_round_by_round():
    figures = summarize(ROUNDS, FORWARDS)
    assert figures["rounds"] == 7
    assert figures["fastest"] == 3.9
    assert figures["median"] == np.median(ROUNDS)
    assert figures["ratio"] == pytest.approx(3.9 / 0.9)
    low, middle, high = np.percentile(np.divide(ROUNDS, FORWARDS), [25, 50, 75])
    assert figures["ratio spread"] == pytest.approx(50 * (high - low) / middle)


def test_rounds_that_only_one_has_are_not_divided():
    assert divide_rounds([2.0], [1.0, 5.0]) == [2.0]
    assert summarize([2.0], [4.0, 1.0])["ratio spread"] is None


def test_a_large_spread_is_noisy():
    assert is_noisy(measure_spread([1.0, 1.0, 2.0, 2.0]))
    assert not is_noisy(measure_spread([1.0, 1.01, 1.02, 1.0]))
