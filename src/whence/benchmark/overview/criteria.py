"""Criteria by which methods are ranked: one figure of one run each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from whence._util.fingerprint import hash_texts
from whence.benchmark.overview.runs import FinishedRun
from whence.benchmark.protocols.base import Metric
from whence.benchmark.table import TableCell, choose_draws, linearize, select_columns
from whence.metrics.rankings import compare_all_pairs

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Criterion:
    """One ranked figure of a protocol, on one model and one dataset.

    Attributes:
        model: The name of the model.
        dataset: The name of the dataset.
        protocol: The protocol with its options.
        metric: The figure.
        cells: The figure of each method that has it.
        columns: What it is computed from, (samples, columns) of each of these methods.
        samples: The names of the samples.
        seed: Of tests.
    """

    model: str
    dataset: str
    protocol: str
    metric: Metric
    cells: Mapping[str, TableCell]
    columns: Mapping[str, Floats]
    samples: tuple[str, ...]
    seed: int

    @property
    def sign(self) -> int:
        """1 if higher figures are better, else -1."""
        return 1 if self.metric.better == "higher" else -1

    @property
    def figure(self) -> str:
        """The protocol and the name of its figure, once where they are the same."""
        name = self.protocol.partition(":")[0]
        same = self.metric.name.lower() == name.lower()
        return self.protocol if same else f"{self.protocol}: {self.metric.name}"

    @property
    def methods(self) -> list[str]:
        """The methods that have a figure."""
        return list(self.cells)

    @property
    def draw_seed(self) -> tuple[int, int]:
        """The seed of resampling, the same for criteria of the same samples."""
        return self.seed, int(hash_texts(self.dataset, *self.samples)[:12], 16)

    @cached_property
    def sample_values(self) -> Floats:
        """A value for each sample and method, (samples, methods), higher is better."""
        values = [linearize(self.metric, self.columns[method]) for method in self.methods]
        return self.sign * np.stack(values, 1)

    @cached_property
    def p_values(self) -> Floats:
        """(methods, methods): row i tests all others against method i, Holm-corrected."""
        draws = choose_draws(len(self.samples))
        return compare_all_pairs(self.sample_values, self.metric.test, draws, self.seed)

    def resample_figures(self, weights: Floats) -> Floats:
        """Figures (resamples, methods), higher is better, of samples that count `weights` times."""
        split = len(self.metric.columns)
        columns = np.stack([self.columns[method] for method in self.methods], 1)
        sums = np.tensordot(weights, columns, 1)
        if not self.metric.denominators:
            return self.sign * sums[..., 0] / len(self.samples)
        above, below = sums[..., :split], sums[..., split:]
        ratios = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
        return np.asarray(self.sign * ratios.mean(-1))

    def format_value(self, value: float) -> str:
        """Round a figure as its table does."""
        return f"{value:.{self.metric.digits}f}"


def list_criteria(runs: Sequence[FinishedRun]) -> list[Criterion]:
    """List the ranked figures of runs, in their order."""
    criteria = []
    for run in runs:
        model, dataset, protocol = run.key
        for metric in run.table.metrics:
            if not metric.ranked:
                continue
            columns, common = select_columns(metric, run.results)
            found = {method: run.table.get_cell(method, metric) for method in columns}
            cells = {method: cell for method, cell in found.items() if cell is not None}
            if not cells:
                continue
            names = next(iter(run.results.values()))["sample"][common]
            samples = tuple(map(str, names))
            given = (model, dataset, protocol, metric, cells, columns, samples, run.seed)
            criteria.append(Criterion(*given))
    return criteria


def name_criteria(criteria: Sequence[Criterion]) -> list[str]:
    """Name each criterion: its figure, and model and dataset where there are several of them.

    A protocol's options are part of the name where it was run with several.
    """
    labels = {one.protocol for one in criteria}
    counts = Counter(label.partition(":")[0] for label in labels)
    several_models = len({one.model for one in criteria}) > 1
    several_datasets = len({one.dataset for one in criteria}) > 1
    names = []
    for one in criteria:
        name = one.protocol.partition(":")[0]
        figure = one.figure
        if counts[name] == 1:
            figure = figure.replace(one.protocol, name, 1)
        parts = [figure]
        parts += [one.model] if several_models else []
        parts += [one.dataset] if several_datasets else []
        names.append(" · ".join(parts))
    return names
