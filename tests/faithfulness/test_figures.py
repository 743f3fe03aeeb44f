"""Figures of the embedded models, as they were when each measure deleted units on its own."""

import pytest

from tests.benchmark.helpers import choose_one, judge
from tests.saved import make_photo
from whence import benchmark, compare, datasets, models

TEXT = "A wonderful film: warm, funny and not a minute too long, though the ending is weak."


@pytest.mark.parametrize(
    ("method", "score", "chances"),
    [
        ("gae", 8.42292, (0.966065, 0.998614, 0.994082)),
        ("rollout", 18.71305, (0.005766, 0.998017, 0.994082)),
    ],
)
def test_faithfulness_of_a_text(method, score, chances):
    curves = compare(TEXT, [method], faithfulness=True, draws=2).faithfulness.get(method)
    assert curves.score == pytest.approx(score, abs=1e-3)
    assert (curves.most[3], curves.least[3], curves.random[3]) == pytest.approx(chances, abs=1e-4)


@pytest.mark.parametrize(
    ("method", "score", "chances"),
    [
        ("gae", 5.36904, (0.316964, 0.814267, 0.689287)),
        ("rollout", -9.89617, (0.408102, 0.636905, 0.689287)),
    ],
)
def test_faithfulness_of_a_photo(method, score, chances):
    found = compare(make_photo(224, 224), [method], faithfulness=True, draws=2)
    curves = found.faithfulness.get(method)
    assert curves.score == pytest.approx(score, abs=1e-3)
    assert (curves.most[3], curves.least[3], curves.random[3]) == pytest.approx(chances, abs=1e-4)


def test_perturbation():
    protocol = benchmark.build_protocol("perturbation", {"insertion": True, "unit": "patches"})
    sample = datasets.Sample("x", make_photo(224, 224), label=0)
    (row,) = judge(protocol, models.load(None, "image"), [sample], choose_one("gae"))
    figures = {
        "positive_predicted_probability_auc": 69.37653,
        "negative_predicted_probability_auc": 65.05021,
        "deletion_predicted": 73.69532,
        "insertion_predicted": 68.64304,
        "positive_target_probability_auc": 19.29995,
        "deletion_target": 25.03514,
        "insertion_target": 31.04984,
        "difference_target_auc": 5.0,
    }
    assert {name: row[name] for name in figures} == pytest.approx(figures, abs=1e-3)


def test_rationale():
    sample = datasets.Sample("x", TEXT, label=1, words=tuple(TEXT.split()), evidence=((1, 3),))
    protocol, loaded = benchmark.build_protocol("rationale", {}), models.load(None, "text")
    (row,) = judge(protocol, loaded, [sample], choose_one("gae"))
    figures = {"f1_mean": 0.215278, "comprehensiveness": 0.067476, "sufficiency": 0.379512}
    assert {name: row[name] for name in figures} == pytest.approx(figures, abs=1e-5)


@pytest.mark.parametrize(
    ("score", "setting", "rating"),
    [
        ("area", ("gradient", "product", "read"), 0.951328),
        ("ranked", ("gradient", "mean", "mean"), 0.032746),
    ],
)
def test_search(score, setting, rating):
    loaded = models.load(None, "text")
    (details,) = loaded.explain(loaded.prepare([TEXT]), method="search", score=score).details
    assert tuple(details["setting"].values()) == setting
    assert details["faithfulness"] == pytest.approx(rating, abs=1e-5)
