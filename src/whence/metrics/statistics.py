"""Confidence intervals of figures, and tests of whether two methods differ.

Each call has its own seeded generator, so the same numbers always give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from whence._util.extras import import_extra
from whence.errors import WhenceError

Numbers: TypeAlias = Tensor | npt.NDArray[np.float64] | Sequence[float] | Sequence[Sequence[float]]
_Floats: TypeAlias = npt.NDArray[np.float64]

RESAMPLES = 2000
EXACT = 12
"""Up to so many samples the paired test goes through all sign flips."""

_AT_ONCE = 1 << 22  # how many drawn numbers are held at once


class ConfidenceInterval(NamedTuple):
    """A figure with its confidence interval."""

    estimate: float
    low: float
    high: float


class PairedTest(NamedTuple):
    """The mean of one less the other, and how likely one as large is by chance alone."""

    difference: float
    p_value: float


def bootstrap_mean(
    values: Numbers, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> ConfidenceInterval:
    """Bootstrap percentile interval of the mean of values (n,) (Efron, 1979).

    Samples are drawn with replacement, as many as there are; the interval lies between quantiles of
    the means of such draws. It should hold the true mean as often as `level` says.
    """
    columns = _to_array(values, 1)[:, None]
    return _bootstrap(columns, lambda sums: sums[:, 0] / len(columns), level, resamples, seed)


def bootstrap_ratio(
    numerators: Numbers,
    denominators: Numbers,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> ConfidenceInterval:
    """Bootstrap percentile interval of a figure that is pooled over the set.

    The figure is the sum of numerators over the sum of denominators: pixel accuracy from correct
    and labelled. With several columns, (n, ratios), it is the mean of their ratios: mIoU from the
    intersections and unions of the two classes. Whole samples are drawn. A ratio without
    denominator is 0.
    """
    above, below = (
        _to_array(numbers, None).reshape(len(numbers), -1) for numbers in (numerators, denominators)
    )
    if above.shape != below.shape:
        raise WhenceError(f"{above.shape} numerators and {below.shape} denominators do not match.")
    if (below < 0).any():
        raise WhenceError("Denominators have to be 0 or more.")
    ratios = above.shape[1]

    def pool_ratio(sums: _Floats) -> _Floats:
        parts, wholes = sums[:, :ratios], sums[:, ratios:]
        means = np.divide(parts, wholes, out=np.zeros_like(parts), where=wholes > 0).mean(1)
        return np.asarray(means)

    return _bootstrap(np.concatenate([above, below], 1), pool_ratio, level, resamples, seed)


def paired_test(one: Numbers, other: Numbers, resamples: int = 10_000, seed: int = 0) -> PairedTest:
    """Two-sided sign-flip permutation test of the mean difference of two methods (Fisher, 1935).

    If the methods were equal, each sample's difference could as well have the other sign. The
    p-value is the share of sign flips whose mean is at least as far from 0 as the observed: of all
    2^n for up to 12 samples, else of random ones, with the observed counted among them.

    Args:
        one: (n,), a value for each sample, such as the sample's own area under the curve.
        other: (n,), of the same samples by the other method.
        resamples: How many random flips.
        seed: Of the generator.
    """
    differences = _subtract(one, other)
    number, total = len(differences), differences.sum()
    # Sums in another order differ by rounding: what is equal on paper has to count as equal.
    least = abs(total) - 1e-12 * np.abs(differences).sum()
    exact = number <= EXACT
    signs = _list_signs(number) if exact else _draw_signs(number, resamples, seed)
    as_far = sum(int((np.abs(flips @ differences) >= least).sum()) for flips in signs)
    share = as_far / 2**number if exact else (as_far + 1) / (resamples + 1)
    return PairedTest(float(total / number), float(share))


def paired_tests(
    values: Numbers, resamples: int = 10_000, seed: int = 0, against: int | None = None
) -> _Floats:
    """The p-values of `paired_test` for many methods, values (n, methods), by the same flips.

    Returns:
        For each two methods, (methods, methods); or of all `against` one of them, (methods,). That
        of a method and itself is 1.
    """
    columns = _to_array(values, 2)
    number, methods = columns.shape
    one, other = np.triu_indices(methods, 1)
    if against is not None:
        one, other = np.arange(methods), np.full(methods, against)
    totals, sizes = columns.sum(0), np.abs(columns).sum(0)
    # As in `paired_test`; a difference of sums is rounded more than a sum of differences.
    rounding = 1e-11 * np.maximum(sizes[one], sizes[other])
    least = np.abs(totals[one] - totals[other]) - rounding
    exact = number <= EXACT
    as_far = np.zeros(len(one), dtype=np.int64)
    for flips in _list_signs(number) if exact else _draw_signs(number, resamples, seed):
        sums = flips @ columns
        for rows in np.array_split(sums, max(1, sums.shape[0] * len(one) // _AT_ONCE)):
            as_far += (np.abs(rows[:, one] - rows[:, other]) >= least).sum(0)
    shares: _Floats = as_far / 2**number if exact else (as_far + 1) / (resamples + 1)
    if against is not None:
        return shares
    found = np.ones((methods, methods))
    found[one, other] = found[other, one] = shares
    return found


def wilcoxon_test(one: Numbers, other: Numbers) -> PairedTest:
    """Two-sided signed-rank test of two methods on the same samples (Wilcoxon, 1945).

    Samples without a difference are left out, and equal ones share the mean of their ranks. The
    p-value goes through all signs for up to 12 samples that differ, is exact for up to 50 without
    ties or samples left out, and else by the normal approximation with its correction for ties. If
    no sample differs, it is 1.

    Args:
        one: (n,), a value for each sample.
        other: (n,), of the same samples by the other method.
    """
    mean = float(_subtract(one, other).mean())
    signed = _rank_with_signs(one, other)
    number = len(signed)
    if not number:
        return PairedTest(mean, 1.0)
    if number <= EXACT:
        sums = np.concatenate([signs @ signed for signs in _list_signs(number)])
        # Ranks are whole or half numbers, whose sums are exact.
        return PairedTest(mean, float((np.abs(sums) >= abs(signed.sum())).mean()))
    is_untied = number == len(one) == len(np.unique(np.abs(signed)))
    method = "exact" if is_untied and number <= 50 else "asymptotic"
    stats = import_extra("scipy.stats", "scipy", "benchmark")
    return PairedTest(mean, float(stats.wilcoxon(signed, method=method).pvalue))


def compare_means_by_ranks(one: Numbers, other: Numbers) -> float:
    """The p-value of `wilcoxon_test` for the claim that the method of the higher mean is better.

    It is 1 where most of the ranks speak for the other method: a mean that few samples make must
    not be called significant by a test that says the opposite.
    """
    found = wilcoxon_test(one, other)
    agrees = found.difference * _rank_with_signs(one, other).sum() > 0
    return found.p_value if agrees else 1.0


def adjust_p_values(p_values: Numbers) -> _Floats:
    """Adjust p-values (m,), so that one false alarm among all tests is as rare (Holm, 1979).

    The i-th smallest of m is multiplied by m - i + 1; none is smaller than one before it, or above
    1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise WhenceError("p-values have to be a list of numbers between 0 and 1.")
    order = np.argsort(p, kind="stable")
    grown = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)) if len(p) else p
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(grown, 1)
    return adjusted


def _rank_with_signs(one: Numbers, other: Numbers) -> _Floats:
    """Ranks of the sizes of the differences that are not 0, with their signs."""
    differences = _subtract(one, other)
    # What is equal on paper may differ by rounding.
    size = np.abs(_to_array(one, 1)) + np.abs(_to_array(other, 1))
    differing = differences[np.abs(differences) > 1e-12 * size]
    stats = import_extra("scipy.stats", "scipy", "benchmark")
    return np.asarray(np.sign(differing) * stats.rankdata(np.abs(differing)))


def _subtract(one: Numbers, other: Numbers) -> _Floats:
    first, second = _to_array(one, 1), _to_array(other, 1)
    if len(first) != len(second):
        raise WhenceError(f"{len(first)} and {len(second)} values are not of the same samples.")
    return first - second


def _to_array(numbers: Numbers, dimensions: int | None) -> _Floats:
    if isinstance(numbers, Tensor):
        numbers = numbers.detach().cpu().numpy()
    found = np.asarray(numbers, dtype=np.float64)
    if dimensions is not None and found.ndim != dimensions:
        raise WhenceError(f"There has to be one value for each sample, not {found.shape}.")
    if not found.size:
        raise WhenceError("There are no samples to tell anything about.")
    if not np.isfinite(found).all():
        raise WhenceError("Some values are NaN or infinite; leave out samples without a value.")
    return found


def _bootstrap(
    columns: _Floats,
    statistic: Callable[[_Floats], _Floats],
    level: float,
    resamples: int,
    seed: int,
) -> ConfidenceInterval:
    if not 0 < level < 1 or resamples < 1:
        raise WhenceError("The level has to be between 0 and 1, with 1 resample or more.")
    drawn = [statistic(times @ columns) for times in _draw_times(len(columns), resamples, seed)]
    low, high = np.quantile(np.concatenate(drawn), [(1 - level) / 2, (1 + level) / 2])
    estimate = statistic(columns.sum(0, keepdims=True))[0]
    return ConfidenceInterval(float(estimate), float(low), float(high))


def _draw_times(samples: int, resamples: int, seed: int) -> Iterator[_Floats]:
    """How often each sample is drawn, (rows, samples), for so many draws with replacement."""
    if samples * resamples <= _AT_ONCE:
        yield _draw_few_times(samples, resamples, seed)
        return
    generator = np.random.default_rng(seed)
    for rows in _split_rows(resamples, samples):
        yield _count_draws(generator, rows, samples)


@lru_cache(maxsize=2)
def _draw_few_times(samples: int, resamples: int, seed: int) -> _Floats:
    """The same for few numbers, which are kept for the next figure."""
    return _count_draws(np.random.default_rng(seed), resamples, samples)


def _count_draws(generator: np.random.Generator, rows: int, samples: int) -> _Floats:
    at = generator.integers(0, samples, (rows, samples))
    at += np.arange(rows)[:, None] * samples
    times = np.bincount(at.ravel(), minlength=rows * samples).reshape(rows, samples)
    return times.astype(np.float64)


def _split_rows(rows: int, width: int) -> Iterator[int]:
    """Numbers of rows that add up, few enough at once."""
    step = max(1, _AT_ONCE // width)
    for start in range(0, rows, step):
        yield min(step, rows - start)


def _list_signs(number: int) -> Iterator[_Floats]:
    bits = np.arange(2**number)[:, None] >> np.arange(number) & 1
    yield np.where(bits, -1.0, 1.0)


def _draw_signs(number: int, resamples: int, seed: int) -> Iterator[_Floats]:
    generator = np.random.default_rng(seed)
    for rows in _split_rows(resamples, number):
        bits = generator.integers(0, 2, (rows, number), dtype=np.int8)
        yield np.where(bits, -1.0, 1.0)
