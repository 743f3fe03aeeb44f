import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from whence import WhenceError
from whence.metrics import statistics as st


@pytest.fixture
def seeded_scipy():
    """scipy whose draws take a generator of numpy by the name `rng`."""
    pytest.importorskip("scipy", minversion="1.15")


@pytest.mark.usefixtures("seeded_scipy")
@pytest.mark.parametrize("n", [1, 2, 9, 200])
def test_interval_of_a_mean_is_scipys(n):
    values = np.random.default_rng(5).exponential(size=n)
    found = st.bootstrap_mean(torch.tensor(values), seed=3)
    assert found.estimate == pytest.approx(values.mean(), abs=1e-14)
    if n == 1:
        assert (found.low, found.high) == pytest.approx((values[0], values[0]))
        return
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=2000, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.usefixtures("seeded_scipy")
def test_interval_of_a_ratio_is_scipys():
    generator = np.random.default_rng(1)
    below = generator.integers(1, 100, (30, 2))
    above = generator.integers(0, 100, (30, 2)) * below // 100
    found = st.bootstrap_ratio(above, below, seed=4)

    def mean_of_ratios(a, b, c, d, axis=-1):
        return (a.sum(axis) / c.sum(axis) + b.sum(axis) / d.sum(axis)) / 2

    expected = stats.bootstrap(
        (*above.T.astype(float), *below.T.astype(float)),
        mean_of_ratios,
        paired=True,
        vectorized=True,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(4),
    ).confidence_interval
    assert found.estimate == pytest.approx((above.sum(0) / below.sum(0)).mean(), abs=1e-14)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_ratio_of_ones_is_a_mean():
    values = torch.rand(20)
    mean = st.bootstrap_mean(values)
    ratio = st.bootstrap_ratio(values, torch.ones(20))
    assert (ratio.low, ratio.high) == pytest.approx((mean.low, mean.high), abs=1e-14)
    assert st.bootstrap_ratio(torch.zeros(3), torch.zeros(3)) == st.ConfidenceInterval(0, 0, 0)


def test_parts_do_not_change_the_answer(monkeypatch):
    values = torch.rand(31)
    before = st.bootstrap_mean(values)
    monkeypatch.setattr(st, "_AT_ONCE", 100)
    assert st.bootstrap_mean(values).low == pytest.approx(before.low, abs=1e-14)
    assert st.bootstrap_mean(values, seed=1) != before


@pytest.mark.parametrize("pooled", [False, True])
def test_intervals_hold_the_truth_about_as_often_as_they_say(pooled):
    generator = np.random.default_rng(0)
    runs, held = 400, 0
    for run in range(runs):
        below = generator.uniform(0.5, 1.5, 60)
        above = below * generator.uniform(0, 1, 60)
        found = (
            st.bootstrap_ratio(above, below, resamples=500, seed=run)
            if pooled
            else st.bootstrap_mean(above, resamples=500, seed=run)
        )
        held += found.low <= 0.5 <= found.high
    assert 0.90 <= held / runs <= 0.98


@pytest.mark.parametrize("n", [1, 2, 5, 8, 12])
def test_paired_test_of_few_is_exact(n):
    generator = np.random.default_rng(n)
    one = generator.integers(0, 5, n) / 10  # tenths tie on paper, not in binary
    other = generator.integers(0, 3, n) / 10
    found = st.paired_test(one, other)
    differences = np.rint((one - other) * 10)
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=n)
    ]
    assert found.p_value == np.mean([value >= abs(differences.sum()) for value in sums])
    assert found.difference == pytest.approx((one - other).mean())


@pytest.mark.usefixtures("seeded_scipy")
def test_paired_test_is_scipys():
    generator = np.random.default_rng(2)
    one = generator.normal(0.4, 1, 10)
    other = generator.normal(0, 1, 10)

    def statistic(a, b, axis=-1):
        return np.mean(a - b, axis=axis)

    def of_scipy(a, b, **options):
        return stats.permutation_test(
            (a, b), statistic, permutation_type="samples", vectorized=True, **options
        ).pvalue

    assert st.paired_test(one, other).p_value == pytest.approx(of_scipy(one, other), abs=1e-12)
    one, other = generator.normal(0.2, 1, 80), generator.normal(0, 1, 80)
    drawn = of_scipy(one, other, n_resamples=20_000, rng=np.random.default_rng(0))
    assert st.paired_test(one, other, resamples=20_000).p_value == pytest.approx(drawn, abs=0.02)


def test_paired_test_at_its_ends():
    assert st.paired_test([1.0, 2.0], [1.0, 2.0]) == st.PairedTest(0.0, 1.0)
    ones, zeros = torch.ones(40), torch.zeros(40)
    assert st.paired_test(ones, zeros) == st.PairedTest(1.0, 1 / 10_001)
    assert st.paired_test(zeros, zeros).p_value == 1
    assert st.paired_test(ones, zeros) == st.paired_test(ones, zeros)


def test_paired_test_raises_false_alarms_as_rarely_as_it_says():
    generator = np.random.default_rng(7)
    small = [
        st.paired_test(*generator.normal(size=(2, 20)), resamples=400, seed=run).p_value <= 0.05
        for run in range(600)
    ]
    assert 0.025 <= np.mean(small) <= 0.08


def plain_holm(p: list[float]) -> list[float]:
    """The smallest level at which the step-down procedure rejects each."""
    found = []
    for value in p:
        before = [q for q in p if q <= value]
        steps = [(len(p) - sum(r < q for r in p)) * q for q in before]
        found.append(min(1.0, max(steps)))
    return found


def test_holm():
    adjusted = st.adjust_p_values([0.01, 0.04, 0.03, 0.005]).tolist()
    assert adjusted == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert st.adjust_p_values([]).tolist() == []
    assert st.adjust_p_values([0.9]).tolist() == [0.9]
    for seed in range(20):
        p = [*np.random.default_rng(seed).uniform(size=7).tolist(), 0.5, 0.5, 0.0, 1.0]
        assert st.adjust_p_values(p).tolist() == pytest.approx(plain_holm(p), abs=1e-15)


def test_bad_requests_are_refused():
    for call in (
        lambda: st.bootstrap_mean([]),
        lambda: st.bootstrap_mean([1.0, np.nan]),
        lambda: st.bootstrap_mean([[1.0]]),
        lambda: st.bootstrap_mean([1.0], level=1),
        lambda: st.bootstrap_ratio([1.0], [1.0, 2.0]),
        lambda: st.bootstrap_ratio([1.0], [-1.0]),
        lambda: st.paired_test([1.0], [1.0, 2.0]),
        lambda: st.adjust_p_values([1.2]),
    ):
        with pytest.raises(WhenceError):
            call()


def signed_ranks_by_hand(differences):
    """W+ less W- of the differences that are not 0, equal ones with the mean of their ranks."""
    kept = [d for d in differences if d != 0]
    total = 0.0
    for d in kept:
        below = sum(abs(other) < abs(d) for other in kept)
        equal = sum(abs(other) == abs(d) for other in kept)
        total += (below + (equal + 1) / 2) * (1 if d > 0 else -1)
    return total, kept


@pytest.mark.parametrize("round_to", [None, 1, 0])
@pytest.mark.parametrize("seed", range(3))
def test_wilcoxon_of_few_samples_goes_through_all_signs(seed, round_to):
    generator = np.random.default_rng(seed)
    one, other = generator.normal(0.3, 1, 8), generator.normal(size=8)
    if round_to is not None:
        one, other = one.round(round_to), other.round(round_to)
    differences = (one - other).round(9)
    observed, kept = signed_ranks_by_hand(differences.tolist())
    sums = [
        signed_ranks_by_hand([sign * abs(d) for sign, d in zip(signs, kept, strict=True)])[0]
        for signs in itertools.product((-1, 1), repeat=len(kept))
    ]
    expected = sum(abs(one) >= abs(observed) for one in sums) / len(sums)
    found = st.wilcoxon_test(differences, np.zeros(8))
    assert found.p_value == pytest.approx(expected)
    assert found.difference == pytest.approx((one - other).mean())


def test_wilcoxon_with_ties_and_zeros_is_the_normal_approximation():
    differences = np.array([0, 0, 1, 1, -1, 2, 3, 3, 3, -2, 5, 0, 4, 4.0, -1, -4])
    observed, kept = signed_ranks_by_hand(differences.tolist())
    sizes = np.unique(np.abs(kept), return_counts=True)[1]
    n = len(kept)
    variance = n * (n + 1) * (2 * n + 1) / 6 - (sizes**3 - sizes).sum() / 12
    expected = 2 * stats.norm.sf(abs(observed) / np.sqrt(variance))
    assert st.wilcoxon_test(differences, np.zeros(16)).p_value == pytest.approx(expected)


def test_wilcoxon_of_some_untied_samples_is_exact():
    one, other = np.random.default_rng(0).normal(size=(2, 30))
    expected = stats.wilcoxon(one - other, method="exact").pvalue
    assert st.wilcoxon_test(one, other).p_value == pytest.approx(expected)


def test_wilcoxon_without_a_difference():
    values = np.random.default_rng(0).normal(size=9)
    assert st.wilcoxon_test(values, values) == (0.0, 1.0)
    assert st.wilcoxon_test([0.1 + 0.2], [0.3]).p_value == 1.0
    assert st.wilcoxon_test([1.0], [0.0]).p_value == 1.0
    with pytest.raises(WhenceError, match="not of the same samples"):
        st.wilcoxon_test([1.0], [0.0, 2.0])


def test_a_mean_that_ranks_contradict_is_not_significant():
    one = np.concatenate([np.full(30, -0.1) - np.arange(30) / 1000, [50.0]])
    other = np.zeros(31)
    assert one.mean() > 0
    assert st.wilcoxon_test(one, other).p_value < 0.01
    assert st.compare_means_by_ranks(one, other) == 1
    assert st.compare_means_by_ranks(other, one) == 1
    likely = st.wilcoxon_test(one[:30], other[:30]).p_value
    assert st.compare_means_by_ranks(one[:30], other[:30]) == likely < 0.01


def test_methods_of_other_sizes_change_no_p_value():
    values = np.random.default_rng(0).normal(size=(20, 2))
    huge = np.concatenate([values, np.full((20, 1), 1e17)], 1)
    assert st.paired_tests(huge)[0, 1] == st.paired_tests(values)[0, 1]
