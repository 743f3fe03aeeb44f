"""Ranks, standings and agreement, counted plainly from figures and samples."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.benchmark.overview.finished import make_run
from tests.metrics.test_rankings import kendall_by_pairs
from whence.benchmark.overview import summarize_runs
from whence.benchmark.table import tabulate
from whence.metrics.rankings import compute_critical_difference
from whence.metrics.statistics import adjust_p_values, paired_test

LEVELS = {"good": 0.8, "alike": 0.8, "fair": 0.6, "bad": 0.2}
OTHERS = {"good": 0.5, "alike": 0.3, "fair": 0.7, "bad": 0.1}


@pytest.fixture(scope="module")
def overview():
    return summarize_runs([make_run(LEVELS), make_run(OTHERS, "dino", seed=1)])


def test_criteria_are_the_ranked_figures(overview):
    figures = ["token-F1", "comprehensiveness", "sufficiency"]
    assert overview.names == [
        f"rationale: {figure} · {model}" for model in ("vit", "dino") for figure in figures
    ]
    assert [one.sign for one in overview.criteria] == [1, 1, -1] * 2


def test_mean_ranks_are_over_runs(overview):
    comparison = overview.comparison
    assert (comparison.blocks, comparison.count) == ("runs", 2)
    for at, (method, mean) in enumerate(comparison.mean_ranks.items()):
        of_runs = []
        for model in ("vit", "dino"):
            ranks = []
            for one in overview.criteria:
                values = {name: one.sign * cell.value for name, cell in one.cells.items()}
                if one.model == model:
                    ranks.append(1 + sum(value > values[method] for value in values.values()))
            of_runs.append(np.mean(ranks))
        assert comparison.ranks[:, at] == pytest.approx(of_runs)
        assert mean == pytest.approx(np.mean(of_runs))
    assert list(comparison.mean_ranks.values()) == sorted(comparison.mean_ranks.values())
    assert comparison.critical_difference == pytest.approx(compute_critical_difference(4, 2))


def test_a_run_of_many_figures_counts_once():
    """One of two runs has three ranked figures, the other only one."""
    many = make_run({"a": 0.9, "b": 0.1})
    few = make_run({"a": 0.1, "b": 0.9}, "dino")
    only = [metric for metric in few.table.metrics if metric.name == "token-F1"]
    few = dataclasses.replace(few, table=dataclasses.replace(few.table, metrics=only))
    overview = summarize_runs([many, few])
    assert len(overview.criteria) == 4
    assert overview.comparison.mean_ranks == {"a": 1.5, "b": 1.5}


def test_standings_are_those_of_paired_tests(overview):
    seen = set()
    for method, standings in overview.standings.items():
        for standing in standings:
            one = overview.criteria[standing.criterion]
            others = [name for name in one.methods if name != method]
            columns = {name: one.columns[name][:, 0] for name in one.methods}
            p_values = adjust_p_values(
                [paired_test(columns[other], columns[method]).p_value for other in others]
            )
            own = columns[method].mean()
            better = {
                other
                for other, p in zip(others, p_values, strict=True)
                if p < 0.05 and one.sign * (columns[other].mean() - own) > 0
            }
            worse = {
                other
                for other, p in zip(others, p_values, strict=True)
                if p < 0.05 and one.sign * (columns[other].mean() - own) < 0
            }
            assert {found.method for found in standing.better} == better
            expected = "beaten" if better else "leads" if worse == set(others) else "ties"
            assert standing.verdict == expected
            for found in standing.better:
                factor = one.metric.factor
                difference = factor * (columns[found.method].mean() - own)
                assert found.difference == pytest.approx(difference)
            seen.add(expected)
    assert seen == {"leads", "ties", "beaten"}
    assert overview.share_beaten("bad") == 1
    assert overview.count_verdicts("fair") == {"leads": 3, "ties": 0, "beaten": 3}


def test_agreement_is_kendalls_with_intervals(overview):
    agreement = overview.agreement
    values = [
        [one.sign * one.cells[method].value for method in overview.methods]
        for one in overview.criteria
    ]
    pairs = list(itertools.combinations(range(6), 2))
    expected = {pair: kendall_by_pairs(*(values[at] for at in pair)) for pair in pairs}
    for (one, other), tau in expected.items():
        assert agreement.tau[one, other] == pytest.approx(tau)
        assert agreement.low[one, other] <= agreement.high[one, other]
        assert agreement.low[one, other] >= -1
    assert agreement.mean.estimate == pytest.approx(np.mean(list(expected.values())))
    assert agreement.mean.low <= agreement.mean.high
    same = [expected[pair] for pair in ((0, 3), (1, 4), (2, 5))]
    mean = agreement.means["same figure, different models"]
    assert mean.estimate == pytest.approx(np.mean(same))
    assert "same figure, different data" not in agreement.means


def test_a_criterion_agrees_with_itself_in_every_draw():
    run = make_run(LEVELS)
    twin = summarize_runs([run, make_run(LEVELS, "twin")])
    at, other = 0, 3
    assert (twin.agreement.low[at, other], twin.agreement.high[at, other]) == (1, 1)


def test_one_run_is_ranked_on_its_samples():
    run = make_run(LEVELS, samples=12)
    overview = summarize_runs([run])
    comparison = overview.comparison
    assert (comparison.blocks, comparison.count) == ("samples", 12)
    columns = {"f1_mean": 1, "comprehensiveness": 1, "sufficiency": -1}
    for method, mean in comparison.mean_ranks.items():
        ranks = [
            1
            + sum(sign * run.results[m][c][at] > sign * run.results[method][c][at] for m in LEVELS)
            for c, sign in columns.items()
            for at in range(12)
        ]
        assert mean == pytest.approx(np.mean(ranks))


def test_methods_without_a_figure_are_not_ranked():
    fewer = {name: level for name, level in LEVELS.items() if name != "fair"}
    overview = summarize_runs([make_run(LEVELS), make_run(fewer, dataset="birds")])
    assert list(overview.left_out) == ["fair"]
    assert len(overview.left_out["fair"]) == 3
    assert set(overview.comparison.mean_ranks) == {"good", "alike", "bad"}
    assert len(overview.standings["fair"]) == 3
    apart = summarize_runs([make_run({"a": 0.5}), make_run({"b": 0.5}, dataset="birds")])
    assert apart.comparison is None
    assert set(apart.left_out) == {"a", "b"}


def test_a_single_method_has_no_rank():
    overview = summarize_runs([make_run({"alone": 0.4})])
    assert overview.comparison is None
    assert overview.agreement is None
    assert overview.count_verdicts("alone") == {"leads": 0, "ties": 3, "beaten": 0}


def test_methods_that_are_the_same_tie():
    run = make_run({"one": 0.5, "bad": 0.1})
    run.results["two"] = run.results["one"]

    table = tabulate(run.protocol, "", run.results)

    overview = summarize_runs([dataclasses.replace(run, table=table)])
    assert overview.comparison.mean_ranks == pytest.approx(
        {"one": 1.5, "two": 1.5, "bad": 3}, abs=0.2
    )
    assert overview.count_verdicts("one") == {"leads": 0, "ties": 3, "beaten": 0}


def test_wilcoxon_groups():
    overview = summarize_runs([make_run(LEVELS)], "wilcoxon")
    assert overview.comparison.critical_difference is None
    assert overview.comparison.groups == [(0, 1)]
    assert overview.comparison.like_best == [list(overview.comparison.mean_ranks)[1]]
