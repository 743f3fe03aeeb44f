"""Summarise runs: mean ranks of methods, agreement of criteria, and who is beaten where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whence.benchmark.overview.agreement import Agreement, compute_agreement
from whence.benchmark.overview.criteria import Criterion, list_criteria, name_criteria
from whence.benchmark.overview.runs import FinishedRun
from whence.benchmark.table import LEVEL
from whence.metrics.rankings import (
    FriedmanTest,
    Ranking,
    compute_critical_difference,
    find_differences,
    friedman_test,
    group_methods,
    rank_values,
)

Verdict = Literal["leads", "ties", "beaten"]
Floats = NDArray[np.float64]


class BetterMethod(NamedTuple):
    """A method that is significantly better than another, by how much, and the p-value."""

    method: str
    difference: float
    p_value: float


@dataclass(frozen=True)
class Standing:
    """How a method stands in a criterion.

    It *leads* if its figure is the best and all others are significantly worse, is *beaten* if
    another one is significantly better, and *ties* otherwise. `better` are the methods that beat
    it, the best first.
    """

    criterion: int
    verdict: Verdict
    better: tuple[BetterMethod, ...]


@dataclass(frozen=True)
class RankComparison:
    """Mean ranks of methods over blocks, and which of them differ.

    Attributes:
        blocks: Whether the ranks are over ``"runs"`` or over the ``"samples"`` of one run; in each
            block they are the mean over its figures, so that protocols of many figures do not
            count more.
        count: The number of blocks.
        mean_ranks: By method, the best first.
        ranks: (blocks, methods), in the order of `mean_ranks`.
        groups: The first and last method of each group in which no two differ significantly.
        like_best: The methods that do not differ significantly from the best.
        friedman: The test of whether any differ.
        ranking: The test that tells which differ.
        critical_difference: Of Nemenyi's test.
    """

    blocks: Literal["runs", "samples"]
    count: int
    mean_ranks: dict[str, float]
    ranks: Floats
    groups: list[tuple[int, int]]
    like_best: list[str]
    friedman: FriedmanTest
    ranking: Ranking
    critical_difference: float | None

    @property
    def best(self) -> str:
        """The method of the best mean rank."""
        return next(iter(self.mean_ranks))


@dataclass(frozen=True)
class Overview:
    """What several criteria say together.

    Attributes:
        runs: The runs.
        criteria: Their ranked figures.
        names: The names of these, as short as they can be.
        methods: All methods.
        left_out: Methods without a figure in some criteria, which are not ranked, and these.
        comparison: The mean ranks; None if fewer than two methods can be ranked.
        agreement: How the criteria agree; None if there are fewer than two.
        standings: How each method stands in each criterion that it has a figure in.
    """

    runs: list[FinishedRun]
    criteria: list[Criterion]
    names: list[str]
    methods: list[str]
    left_out: dict[str, list[str]]
    comparison: RankComparison | None
    agreement: Agreement | None
    standings: dict[str, list[Standing]]

    def count_verdicts(self, method: str) -> dict[Verdict, int]:
        """Count the criteria in which a method leads, ties and is beaten."""
        verdicts = [one.verdict for one in self.standings[method]]
        return {verdict: verdicts.count(verdict) for verdict in ("leads", "ties", "beaten")}

    def share_beaten(self, method: str) -> float:
        """The share of the criteria in which another method is significantly better."""
        return self.count_verdicts(method)["beaten"] / max(1, len(self.standings[method]))


def summarize_runs(runs: Sequence[FinishedRun], ranking: Ranking = "nemenyi") -> Overview | None:
    """Summarise finished runs; None if no figure of them is ranked."""
    criteria = list_criteria(runs)
    if not criteria:
        return None
    names = name_criteria(criteria)
    methods = list(dict.fromkeys(method for one in criteria for method in one.cells))
    missing = {
        method: [name for name, one in zip(names, criteria, strict=True) if method not in one.cells]
        for method in methods
    }
    complete = [method for method in methods if not missing[method]]
    return Overview(
        list(runs),
        criteria,
        names,
        methods,
        {method: without for method, without in missing.items() if without},
        _compare_ranks(criteria, complete, ranking) if len(complete) > 1 else None,
        compute_agreement(criteria, methods) if len(criteria) > 1 and len(methods) > 1 else None,
        {method: list(_list_standings(criteria, method)) for method in methods},
    )


def _compare_ranks(
    criteria: Sequence[Criterion], methods: Sequence[str], ranking: Ranking
) -> RankComparison:
    runs = {(one.model, one.dataset, one.protocol) for one in criteria}
    is_single = len(runs) == 1
    ranks = (_rank_on_samples if is_single else _rank_in_runs)(criteria, methods)
    order = np.argsort(ranks.mean(0), kind="stable")
    ranks = ranks[:, order]
    names = [methods[at] for at in order]
    differs = find_differences(ranks, ranking)
    critical = None
    if ranking == "nemenyi":
        critical = compute_critical_difference(len(methods), len(ranks))
    return RankComparison(
        "samples" if is_single else "runs",
        len(ranks),
        dict(zip(names, ranks.mean(0).tolist(), strict=True)),
        ranks,
        group_methods(differs),
        [name for name, is_worse in zip(names[1:], differs[0, 1:], strict=True) if not is_worse],
        friedman_test(ranks),
        ranking,
        critical,
    )


def _rank_in_runs(criteria: Sequence[Criterion], methods: Sequence[str]) -> Floats:
    """Rank methods in each run, the mean over its criteria: (runs, methods)."""
    by_run: dict[tuple[str, str, str], list[list[float]]] = {}
    for one in criteria:
        values = [one.sign * one.cells[method].value for method in methods]
        by_run.setdefault((one.model, one.dataset, one.protocol), []).append(values)
    return np.stack([rank_values(np.array(values)).mean(0) for values in by_run.values()])


def _rank_on_samples(criteria: Sequence[Criterion], methods: Sequence[str]) -> Floats:
    """Rank methods on each sample, the mean over the criteria of one run: (samples, methods)."""
    common = sorted(set.intersection(*(set(one.samples) for one in criteria)))
    means = []
    for one in criteria:
        index = {name: at for at, name in enumerate(one.samples)}
        rows, columns = [index[name] for name in common], [one.methods.index(m) for m in methods]
        means.append(rank_values(one.sample_values[rows][:, columns]))
    return np.asarray(np.mean(means, 0))


def _list_standings(criteria: Sequence[Criterion], method: str) -> Iterator[Standing]:
    for number, one in enumerate(criteria):
        if method in one.cells:
            yield _judge(number, one, method)


def _judge(number: int, criterion: Criterion, method: str) -> Standing:
    at = criterion.methods.index(method)
    own = criterion.cells[method].value
    better, is_ahead = [], len(criterion.methods) > 1
    for other, p in zip(criterion.methods, criterion.p_values[at], strict=True):
        if other == method:
            continue
        difference = criterion.cells[other].value - own
        is_better = criterion.sign * difference > 0
        if p < LEVEL and is_better:
            better.append(BetterMethod(other, difference, float(p)))
        is_ahead = is_ahead and p < LEVEL and not is_better
    better.sort(key=lambda one: -criterion.sign * one.difference)
    verdict: Verdict = "beaten" if better else "leads" if is_ahead else "ties"
    return Standing(number, verdict, tuple(better))


def find_p_values(criterion: Criterion, reference: str | None) -> Mapping[str, float | None]:
    """Find the corrected p-values of all methods of a criterion against one of them."""
    if reference is None or reference not in criterion.cells:
        return dict.fromkeys(criterion.methods)
    row = criterion.p_values[criterion.methods.index(reference)]
    return {
        method: None if method == reference else float(p)
        for method, p in zip(criterion.methods, row, strict=True)
    }
