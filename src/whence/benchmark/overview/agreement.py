"""How the rankings of criteria agree: Kendall's tau of each two, with bootstrap intervals."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whence.benchmark.overview.criteria import Criterion
from whence.metrics.rankings import draw_weights, kendall_tau
from whence.metrics.statistics import ConfidenceInterval

RESAMPLES = 1000
# How many draws are held at once: numbers of samples, and pairs of methods.
_AT_ONCE = 1 << 23

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau of each two criteria, (criteria, criteria), with bounds of its 95 % interval.

    Samples are drawn with replacement, for criteria of the same samples the same ones. `mean` is
    over all pairs; `means` over those that are alike in some way, which their names say.
    """

    tau: Floats
    low: Floats
    high: Floats
    mean: ConfidenceInterval
    means: dict[str, ConfidenceInterval]


def compute_agreement(criteria: Sequence[Criterion], methods: Sequence[str]) -> Agreement:
    """Compute how the rankings of criteria agree on methods."""
    observed = np.stack(
        [
            [
                one.sign * one.cells[method].value if method in one.cells else np.nan
                for method in methods
            ]
            for one in criteria
        ]
    )
    tau = kendall_tau(observed)
    figures = _resample_figures(criteria, methods)
    count = len(criteria)
    step = max(1, _AT_ONCE // (count * len(methods) ** 2))
    parts = [kendall_tau(figures[at : at + step]) for at in range(0, len(figures), step)]
    drawn = np.concatenate(parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # criteria that tell no methods apart
        low, high = np.nanquantile(drawn, [0.025, 0.975], 0)
        pairs = np.triu(np.ones((count, count), dtype=bool), 1)
        mean = _average(tau, drawn, pairs)
        kinds = _list_kinds_of_pairs(criteria)
        means = {
            kind: _average(tau, drawn, pairs & alike)
            for kind, alike in kinds.items()
            if (pairs & alike).any() and not (alike | ~pairs).all()
        }
    return Agreement(tau, low, high, mean, means)


def _resample_figures(criteria: Sequence[Criterion], methods: Sequence[str]) -> Floats:
    """Figures of resampled samples, (resamples, criteria, methods); NaN where there is none."""
    figures = np.full((RESAMPLES, len(criteria), len(methods)), np.nan)
    for seed in dict.fromkeys(one.draw_seed for one in criteria):
        alike = [at for at, one in enumerate(criteria) if one.draw_seed == seed]
        samples = len(criteria[alike[0]].samples)
        step = max(1, _AT_ONCE // samples)
        for start in range(0, RESAMPLES, step):
            rows = slice(start, min(start + step, RESAMPLES))
            weights = draw_weights(samples, rows.stop - start, (*seed, start))
            for at in alike:
                columns = [methods.index(method) for method in criteria[at].methods]
                figures[rows, at, columns] = criteria[at].resample_figures(weights)
    return figures


def _average(tau: Floats, drawn: Floats, chosen: Bools) -> ConfidenceInterval:
    """Average over chosen pairs of criteria, with the interval of the draws."""
    of_draws = np.nanmean(drawn[:, chosen], 1)
    low, high = np.nanquantile(of_draws, [0.025, 0.975])
    return ConfidenceInterval(float(np.nanmean(tau[chosen])), float(low), float(high))


def _list_kinds_of_pairs(criteria: Sequence[Criterion]) -> dict[str, Bools]:
    """Which pairs of criteria share what, (criteria, criteria)."""

    def share(*attributes: str) -> Bools:
        keys = [tuple(getattr(one, attribute) for attribute in attributes) for one in criteria]
        return np.array([[one == other for other in keys] for one in keys])

    protocol, figure = share("protocol"), share("figure")
    model, dataset = share("model"), share("dataset")
    return {
        "one protocol's figures, same model and data": protocol & model & dataset,
        "different protocols, same model and data": ~protocol & model & dataset,
        "same figure, different models": figure & ~model & dataset,
        "same figure, different data": figure & ~dataset & model,
    }
