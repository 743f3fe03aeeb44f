import itertools
import math

import numpy as np
import pytest
from scipy import stats

from whence import WhenceError
from whence.metrics import rankings as rk
from whence.metrics import statistics as st


def kendall_by_pairs(one, other):
    """Concordant less discordant pairs, each pair counted in a loop."""
    score = untied_one = untied_other = 0
    for (a, b), (c, d) in itertools.combinations(zip(one, other, strict=True), 2):
        if any(map(math.isnan, (a, b, c, d))):
            continue
        score += int(np.sign(a - c) * np.sign(b - d))
        untied_one += a != c
        untied_other += b != d
    product = untied_one * untied_other
    return score / math.sqrt(product) if product else math.nan


def test_ranks_share_ties_and_skip_what_is_missing():
    values = np.array([[3.0, 1, 3, 2], [np.nan, 5, 5, 5], [1, np.nan, 2, np.nan]])
    expected = [[1.5, 4, 1.5, 3], [np.nan, 2, 2, 2], [2, np.nan, 1, np.nan]]
    assert rk.rank_values(values) == pytest.approx(np.array(expected), nan_ok=True)


@pytest.mark.parametrize("seed", range(3))
def test_kendall_counts_pairs(seed):
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 4, (5, 7)).astype(float)
    values[0, 2] = values[3, 5] = np.nan
    values[4] = 1.0  # tells no two methods apart
    found = rk.kendall_tau(values)
    for one, other in itertools.product(range(5), repeat=2):
        expected = kendall_by_pairs(values[one], values[other])
        assert found[one, other] == pytest.approx(expected, nan_ok=True)
    whole = np.stack([values, values[::-1]])
    assert np.array_equal(rk.kendall_tau(whole)[1], rk.kendall_tau(values[::-1]), equal_nan=True)


def test_kendall_is_scipys():
    values = np.random.default_rng(4).integers(0, 6, (2, 12)).astype(float)
    expected = stats.kendalltau(*values).statistic
    assert rk.kendall_tau(values)[0, 1] == pytest.approx(expected)


# Demšar (JMLR 2006), table 5 (a): critical values of the Nemenyi test for 2, 3, … 10 classifiers.
DEMSAR = {
    0.05: (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164),
    0.10: (1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920),
}


@pytest.mark.parametrize("level", DEMSAR)
def test_critical_differences_are_those_that_were_published(level):
    for methods, quantile in enumerate(DEMSAR[level], 2):
        expected = quantile * math.sqrt(methods * (methods + 1) / (6 * 14))
        found = rk.compute_critical_difference(methods, 14, level)
        assert found == pytest.approx(expected, rel=4e-4)
    with pytest.raises(WhenceError, match="2 methods or more"):
        rk.compute_critical_difference(1, 5)


def test_friedman_is_scipys_with_ties():
    values = np.random.default_rng(0).integers(0, 5, (9, 4)).astype(float)
    expected = stats.friedmanchisquare(*values.T)
    found = rk.friedman_test(rk.rank_values(values))
    assert found == pytest.approx(tuple(expected))
    assert rk.friedman_test(np.full((3, 4), 2.5)) == (0.0, 1.0)


def test_methods_that_differ():
    generator = np.random.default_rng(1)
    values = generator.normal(size=(40, 4)) + np.array([3, 2.9, 1, -2])
    ranks = rk.rank_values(values)
    means = ranks.mean(0)
    critical = rk.compute_critical_difference(4, 40)
    found = rk.find_differences(ranks)
    for one, other in itertools.product(range(4), repeat=2):
        assert found[one, other] == (abs(means[one] - means[other]) > critical)
    pairs = list(itertools.combinations(range(4), 2))
    p_values = [stats.wilcoxon(ranks[:, a] - ranks[:, b]).pvalue for a, b in pairs]
    found = rk.find_differences(ranks, "wilcoxon")
    for (a, b), p in zip(pairs, st.adjust_p_values(p_values), strict=True):
        assert found[a, b] == found[b, a] == (p < 0.05)
    assert not found.diagonal().any()
    assert not found[0, 1]
    assert found[0, 3]


def test_groups_are_the_longest_runs_without_a_difference():
    differs = np.zeros((6, 6), dtype=bool)
    for one, other in ((0, 2), (0, 3), (0, 4), (0, 5), (1, 4), (1, 5), (2, 5), (2, 4), (3, 5)):
        differs[one, other] = differs[other, one] = True
    # 0-1, 1-3, (2-3 is inside), 3-4, 4-5
    assert rk.group_methods(differs) == [(0, 1), (1, 3), (3, 4), (4, 5)]
    assert rk.group_methods(np.zeros((3, 3), dtype=bool)) == [(0, 2)]
    assert rk.group_methods(~np.eye(3, dtype=bool)) == []


@pytest.mark.parametrize("samples", [7, 30])
def test_all_pairs_are_paired_tests(samples):
    generator = np.random.default_rng(3)
    values = generator.integers(0, 9, (samples, 4)) / 9
    values[:, 3] = values[:, 1]
    found = st.paired_tests(values, 500, seed=2)
    for one, other in itertools.product(range(4), repeat=2):
        expected = st.paired_test(values[:, one], values[:, other], 500, seed=2).p_value
        assert found[one, other] == pytest.approx(expected, abs=1e-12)
    assert np.array_equal(st.paired_tests(values, 500, 2, against=1), found[1])
    adjusted = rk.compare_all_pairs(values, "sign-flip", 500, seed=2)
    others = [0, 2, 3]
    assert adjusted[1, others] == pytest.approx(st.adjust_p_values(found[1, others]))
    assert (adjusted.diagonal() == 1).all()
    ranked = rk.compare_all_pairs(values, "wilcoxon")
    single = [st.wilcoxon_test(values[:, 1], values[:, other]).p_value for other in others]
    assert ranked[1, others] == pytest.approx(st.adjust_p_values(single))
    assert ranked[1, 3] == 1


def test_weights_are_draws_with_replacement():
    weights = rk.draw_weights(5, 400, (1, 2))
    assert (weights.sum(1) == 5).all()
    assert weights.mean(0) == pytest.approx(np.ones(5), abs=0.2)
    assert np.array_equal(weights, rk.draw_weights(5, 400, (1, 2)))
    assert not np.array_equal(weights, rk.draw_weights(5, 400, (1, 3)))
