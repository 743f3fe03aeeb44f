"""Compute the table of a benchmark: figures with intervals, and tests against the best method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from whence.benchmark.columns import Columns
from whence.benchmark.protocols.base import AnyProtocol, Metric
from whence.metrics.statistics import (
    ConfidenceInterval,
    adjust_p_values,
    bootstrap_mean,
    bootstrap_ratio,
    compare_means_by_ranks,
    paired_tests,
)

LEVEL = 0.05
# Draws for each test and interval: fewer for large sets, whose figures vary less.
_DRAWN_NUMBERS = 20_000_000
_FEWEST_DRAWS = 1000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TableCell:
    """A figure of a method, with its 95 % interval and the number of its samples.

    `p` is how likely so large a difference to the best is by chance alone, corrected after Holm for
    all methods of the column; None for the best one itself.
    """

    value: float
    low: float
    high: float
    p: float | None
    samples: int

    @property
    def is_best(self) -> bool:
        """Whether no other method has a better figure."""
        return self.p is None

    @property
    def is_like_best(self) -> bool:
        """Whether the difference to the best is not significant."""
        return self.p is not None and self.p >= LEVEL

    @property
    def verdict(self) -> str:
        """``best``, ``like best`` (no significant difference) or ``worse``."""
        return "best" if self.is_best else "like best" if self.is_like_best else "worse"


@dataclass(frozen=True)
class BenchmarkTable:
    """Methods and metrics.

    `cells` are by method and metric; what a method has no figure for is missing. `notes` are
    sentences under the table.
    """

    title: str
    metrics: list[Metric]
    methods: list[str]
    cells: dict[tuple[str, str], TableCell]
    notes: list[str] = field(default_factory=list)

    def get_cell(self, method: str, metric: Metric) -> TableCell | None:
        """A figure; None if there is none."""
        return self.cells.get((method, metric.name))

    def find_best(self, metric: str) -> str | None:
        """The method with the best figure."""
        return next(
            (m for m in self.methods if (c := self.cells.get((m, metric))) and c.is_best), None
        )

    def to_dict(self) -> dict[str, dict[str, dict[str, float | str | None]]]:
        """All figures, for scripts."""
        figures: dict[str, dict[str, dict[str, float | str | None]]] = {m: {} for m in self.methods}
        for method in self.methods:
            for metric in self.metrics:
                if (cell := self.get_cell(method, metric)) is not None:
                    figures[method][metric.name] = {**asdict(cell), "verdict": cell.verdict}
        return figures


def tabulate(
    protocol: AnyProtocol,
    title: str,
    results: Mapping[str, Columns],
    seed: int = 0,
    notes: Sequence[str] = (),
) -> BenchmarkTable:
    """Compute every figure with its interval, and test every method against the best.

    `results` are the columns of each method, rows of the same samples in the same order; `seed` is
    that of intervals and tests, which do not depend on the order of the samples.
    """
    results = {method: sort_samples(columns) for method, columns in results.items()}
    metrics = [metric for metric in protocol.list_metrics() if _is_filled(metric, results)]
    cells = {
        (method, metric.name): cell
        for metric in metrics
        for method, cell in _compute_column(metric, results, seed).items()
    }
    all_notes = [*protocol.write_notes(results), *notes, _write_legend(metrics, len(results))]
    return BenchmarkTable(title, metrics, list(results), cells, all_notes)


def sort_samples(columns: Columns) -> Columns:
    """Sort the rows by the names of their samples."""
    order = np.argsort([str(name) for name in columns["sample"]], kind="stable")
    return {name: values[order] for name, values in columns.items()}


def _is_filled(metric: Metric, results: Mapping[str, Columns]) -> bool:
    """Whether each column of a metric has a number of some method."""
    return all(
        any(
            name in columns and columns[name].dtype != object and np.isfinite(columns[name]).any()
            for columns in results.values()
        )
        for name in (*metric.columns, *metric.denominators)
    )


def _write_legend(metrics: Sequence[Metric], methods: int) -> str:
    if not metrics:
        return "No sample has a figure, so the table is empty."
    legend = "Brackets hold bootstrap 95 % intervals."
    if methods < 2:
        return legend
    tests = {"sign-flip": "paired sign-flip test", "wilcoxon": "Wilcoxon's signed-rank test"}
    used = [name for test, name in tests.items() if any(one.test == test for one in metrics)]
    if len(used) > 1:
        ranked = ", ".join(one.name for one in metrics if one.test == "wilcoxon")
        used = [used[0], f"for {ranked} {used[1]}"]
    return (
        f"{legend} The best figure is bold; ≈ marks what is not significantly different from it "
        f"({'; '.join(used)}; Holm-corrected over the methods, p ≥ {LEVEL})."
    )


def _compute_column(
    metric: Metric, results: Mapping[str, Columns], seed: int
) -> dict[str, TableCell]:
    columns, common = select_columns(metric, results)
    if not columns:
        return {}
    samples = int(common.sum())
    draws = choose_draws(samples)
    intervals = {
        method: _compute_interval(metric, one, seed, draws) for method, one in columns.items()
    }
    sign = 1 if metric.better == "higher" else -1
    best = max(intervals, key=lambda method: sign * intervals[method].estimate)
    others = [method for method in columns if method != best]
    own = {method: linearize(metric, one) for method, one in columns.items()}
    tests = _test_against(metric, own[best], [own[other] for other in others], draws, seed)
    p_values = dict(zip(others, adjust_p_values(tests).tolist(), strict=True))
    cells = {}
    for method, found in intervals.items():
        value, low, high = (metric.factor * number for number in found)
        cells[method] = TableCell(value, low, high, p_values.get(method), samples)
    return cells


def select_columns(
    metric: Metric, results: Mapping[str, Columns]
) -> tuple[dict[str, Floats], NDArray[np.bool_]]:
    """Select the columns (samples, columns) of a metric, for each method that has it.

    Figures are comparable only on the same samples: those that all of these methods have.

    Returns:
        The columns of the samples that all have, and which these are; nothing if there are none.
    """
    needed = (*metric.columns, *metric.denominators)
    columns = {
        method: np.stack([found[name] for name in needed], 1).astype(np.float64)
        for method, found in results.items()
        if all(name in found and np.isfinite(found[name]).any() for name in needed)
    }
    if not columns:
        return {}, np.zeros(0, dtype=bool)
    common = np.logical_and.reduce([np.isfinite(one).all(1) for one in columns.values()])
    if not common.any():
        return {}, common
    return {method: one[common] for method, one in columns.items()}, common


def choose_draws(samples: int) -> int:
    """Choose the number of draws of a test or an interval."""
    return int(np.clip(_DRAWN_NUMBERS // samples, _FEWEST_DRAWS, 10_000))


def _test_against(
    metric: Metric, best: Floats, others: Sequence[Floats], draws: int, seed: int
) -> list[float]:
    """How likely so large differences of methods to the best are by chance alone."""
    if metric.test == "wilcoxon":
        return [compare_means_by_ranks(other, best) for other in others]
    p_values: list[float] = paired_tests(np.stack([best, *others], 1), draws, seed, 0).tolist()
    return p_values[1:]


def _compute_interval(metric: Metric, values: Floats, seed: int, draws: int) -> ConfidenceInterval:
    draws = min(draws, 2000)
    if not metric.denominators:
        return bootstrap_mean(values[:, 0], resamples=draws, seed=seed)
    above, below = np.split(values, [len(metric.columns)], 1)
    return bootstrap_ratio(above, below, resamples=draws, seed=seed)


def linearize(metric: Metric, values: Floats) -> Floats:
    r"""Compute a value of each sample whose mean is the figure, of its columns (samples, columns).

    A pooled figure :math:`r = \sum a_i / \sum b_i` has none; to first order a sample moves it by
    :math:`(a_i - r b_i) / \bar b`, so :math:`r + (a_i - r b_i) / \bar b` stands for it.
    """
    if not metric.denominators:
        return values[:, 0]
    above, below = np.split(values, [len(metric.columns)], 1)
    whole = np.where(below.sum(0) > 0, below.sum(0), 1)
    ratio = above.sum(0) / whole
    of_samples: Floats = (ratio + (above - ratio * below) * len(values) / whole).mean(1)
    return of_samples
