"""Compare methods over many criteria: ranks, how rankings agree, and which methods differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from whence._util.extras import import_extra
from whence.errors import WhenceError
from whence.metrics.statistics import (
    adjust_p_values,
    compare_means_by_ranks,
    paired_tests,
    wilcoxon_test,
)

Ranking = Literal["nemenyi", "wilcoxon"]
_Floats: TypeAlias = npt.NDArray[np.float64]
_Bools: TypeAlias = npt.NDArray[np.bool_]

LEVEL = 0.05


class FriedmanTest(NamedTuple):
    """Friedman's statistic, and how likely one as large is if all methods are equal."""

    statistic: float
    p_value: float


def rank_values(values: _Floats) -> _Floats:
    """Rank values (…, methods), the largest first as 1; equal ones share the mean of their ranks.

    NaN has no rank, and stays NaN.
    """
    above = values[..., None, :] > values[..., :, None]
    equal = values[..., None, :] == values[..., :, None]
    ranks = above.sum(-1) + (equal.sum(-1) + 1) / 2
    return np.where(np.isnan(values), np.nan, ranks)


def kendall_tau(values: _Floats) -> _Floats:
    r"""Kendall's :math:`\tau_b` of each two rows of values (…, criteria, methods).

    Of all pairs of methods, those that two criteria order alike less those that they order the
    other way: :math:`\tau_b = (c - d) / \sqrt{(n - t_1)(n - t_2)}` for n pairs, of which
    :math:`t_1` and :math:`t_2` are equal in one and in the other criterion (Kendall, 1945).
    Methods that a criterion has no value for (NaN) are left out of its pairs.

    Returns:
        (…, criteria, criteria); NaN where a criterion tells no two methods apart.
    """
    first, second = np.triu_indices(values.shape[-1], 1)
    signs = np.sign(values[..., first] - values[..., second])
    known = np.isfinite(signs).astype(np.float64)
    signs = np.nan_to_num(signs)
    agreement = signs @ np.swapaxes(signs, -1, -2)
    untied = signs**2 @ np.swapaxes(known, -1, -2)
    product = untied * np.swapaxes(untied, -1, -2)
    nothing = np.full_like(product, np.nan)
    found: _Floats = np.divide(agreement, np.sqrt(product), out=nothing, where=product > 0)
    return found


def compute_critical_difference(methods: int, blocks: int, level: float = LEVEL) -> float:
    r"""Nemenyi's critical difference of mean ranks over blocks (Nemenyi, 1963; Demšar, 2006).

    :math:`q \sqrt{k (k + 1) / 6 N}` for k methods and N blocks, with q the quantile of the
    studentised range of k values divided by :math:`\sqrt 2`. Mean ranks of two methods that differ
    by more are significantly different, with all pairs considered.
    """
    if methods < 2 or blocks < 1:
        raise WhenceError("Ranks are compared for 2 methods or more, on 1 block or more.")
    stats = import_extra("scipy.stats", "scipy", "benchmark")
    quantile = stats.studentized_range.ppf(1 - level, methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6 * blocks)))


def friedman_test(ranks: _Floats) -> FriedmanTest:
    """Friedman's test of whether methods differ, of ranks (blocks, methods), ties corrected.

    If every block ranks all methods alike, the p-value is 1.
    """
    blocks, methods = ranks.shape
    sums = blocks * ((ranks.mean(0) - (methods + 1) / 2) ** 2).sum()
    spread = ((ranks - (methods + 1) / 2) ** 2).sum() / (blocks * (methods - 1))
    if spread <= 0:
        return FriedmanTest(0.0, 1.0)
    statistic = float(sums / spread)
    stats = import_extra("scipy.stats", "scipy", "benchmark")
    return FriedmanTest(statistic, float(stats.chi2.sf(statistic, methods - 1)))


def check_ranking(ranking: str) -> None:
    """Refuse a test of ranks that does not exist."""
    if ranking not in get_args(Ranking):
        raise WhenceError(f"The ranking is 'nemenyi' or 'wilcoxon', not {ranking!r}.")


def find_differences(ranks: _Floats, ranking: Ranking = "nemenyi", level: float = LEVEL) -> _Bools:
    """Tell which two methods differ significantly, (methods, methods), of ranks (blocks, methods).

    By Nemenyi's critical difference of mean ranks; or by Wilcoxon's signed-rank test of the ranks
    of each two methods, Holm-corrected over all pairs, which does not depend on the other methods.
    """
    blocks, methods = ranks.shape
    if ranking == "nemenyi":
        means = ranks.mean(0)
        critical = compute_critical_difference(methods, blocks, level)
        return np.asarray(np.abs(means[:, None] - means) > critical)
    first, second = np.triu_indices(methods, 1)
    p_values = [
        wilcoxon_test(ranks[:, one], ranks[:, other]).p_value
        for one, other in zip(first, second, strict=True)
    ]
    found = np.zeros((methods, methods), dtype=bool)
    found[first, second] = adjust_p_values(p_values) < level
    return found | found.T


def group_methods(differs: _Bools) -> list[tuple[int, int]]:
    """Group methods, sorted by mean rank, of which no two differ; the first and last of each group.

    Groups of one method, and those inside of another, are left out.
    """
    groups: list[tuple[int, int]] = []
    for start in range(len(differs)):
        end = start
        while end + 1 < len(differs) and not differs[start : end + 1, end + 1].any():
            end += 1
        if end > start and (not groups or end > groups[-1][1]):
            groups.append((start, end))
    return groups


def compare_all_pairs(
    values: _Floats, test: str = "sign-flip", resamples: int = 10_000, seed: int = 0
) -> _Floats:
    """Compare each two methods on the same samples, values (samples, methods).

    Returns:
        (methods, methods): row i holds the p-values of all others against method i, Holm-corrected
        over the row; 1 for i itself.
    """
    methods = values.shape[1]
    if test == "wilcoxon":
        p_values = np.ones((methods, methods))
        for one, other in zip(*np.triu_indices(methods, 1), strict=True):
            found = compare_means_by_ranks(values[:, one], values[:, other])
            p_values[one, other] = p_values[other, one] = found
    else:
        p_values = paired_tests(values, resamples, seed)
    adjusted = np.ones((methods, methods))
    for at, row in enumerate(p_values):
        others = [other for other in range(methods) if other != at]
        adjusted[at, others] = adjust_p_values(row[others])
    return adjusted


def draw_weights(samples: int, resamples: int, seed: Sequence[int]) -> _Floats:
    """Draw samples with replacement: how often each was drawn, (resamples, samples)."""
    generator = np.random.default_rng(list(seed))
    shares = np.full(samples, 1 / samples)
    return generator.multinomial(samples, shares, resamples).astype(np.float64)
