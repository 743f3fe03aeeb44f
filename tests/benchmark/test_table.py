"""Figures from rows, recomputed plainly; the formats they are written in."""

import csv
import io
import re

import numpy as np
import pytest
import torch

from whence.benchmark import build
from whence.benchmark.columns import as_columns, joined
from whence.benchmark.curves import drawn
from whence.benchmark.formats import comma_separated, latex, markdown, terminal
from whence.benchmark.table import tabulate
from whence.metrics.segmentation import pooled

NUMBER = 40


def segmented(shift: float, seed: int = 0):
    """Rows of a method that is right on so many more pixels."""
    generator = np.random.default_rng(seed)
    rows = []
    for at in range(NUMBER):
        size = int(generator.integers(50, 200))
        right = int(size * min(1, 0.5 + shift + 0.1 * generator.random()))
        rows.append(
            {
                "sample": f"s{at}",
                "correct": right,
                "labelled": size,
                "intersection_foreground": right // 2,
                "union_foreground": size // 2 + 5,
                "intersection_background": right // 3,
                "union_background": size // 2 + 9,
                "average_precision": right / size,
                "f1": 0.9 * right / size,
            }
        )
    return rows


@pytest.fixture
def rows():
    return {"good": segmented(0.3), "bad": segmented(0.0, 1), "alike": segmented(0.3, 2)}


@pytest.fixture
def table(rows):
    results = {method: as_columns(found) for method, found in rows.items()}
    return tabulate(build("segmentation", {}), "A table", results, seed=1)


def test_figures_are_those_of_the_rows(rows, table):
    for method, found in rows.items():
        cells = {
            name: torch.tensor([row[name] for row in found])
            for name in found[0]
            if name != "sample"
        }
        expected = pooled(cells)
        told = table.as_dict()[method]
        assert told["pixel accuracy"]["value"] == pytest.approx(100 * expected["pixel_accuracy"])
        assert told["mIoU"]["value"] == pytest.approx(100 * expected["mIoU"])
        assert told["mAP"]["value"] == pytest.approx(100 * expected["mAP"])
        assert told["F1"]["value"] == pytest.approx(100 * expected["F1"])
        for cell in told.values():
            assert cell["low"] <= cell["value"] <= cell["high"]
            assert cell["samples"] == NUMBER


def test_what_differs_from_the_best_and_what_does_not(table):
    best = table.best("mIoU")
    other = {"good": "alike", "alike": "good"}[best]
    told = table.as_dict()
    assert told[best]["mIoU"]["verdict"] == "best"
    assert told[best]["mIoU"]["p"] is None
    assert told[other]["mIoU"]["verdict"] == "like best"
    assert told["bad"]["mIoU"]["verdict"] == "worse"
    assert told["bad"]["mIoU"]["p"] < 0.01


def test_holm_corrects_over_methods(rows):
    results = {method: as_columns(found) for method, found in rows.items()}
    two = tabulate(build("segmentation", {}), "", {k: results[k] for k in ("good", "bad")}, 1)
    three = tabulate(build("segmentation", {}), "", {**results, "worst": results["bad"]}, 1)
    assert two.as_dict()["bad"]["mAP"]["p"] <= three.as_dict()["bad"]["mAP"]["p"]


def test_figures_are_of_the_samples_that_all_have():
    results = {
        "a": as_columns([{"sample": "x", "f1": 0.5}, {"sample": "y", "f1": 1.0}]),
        "b": as_columns([{"sample": "x", "f1": 0.4}, {"sample": "y", "f1": None}]),
        "c": as_columns([{"sample": "x"}, {"sample": "y"}]),
    }
    told = tabulate(build("segmentation", {}), "", results).as_dict()
    assert told["a"]["F1"]["value"] == pytest.approx(50)
    assert told["a"]["F1"]["samples"] == 1
    assert told["c"] == {}


def test_formats_tell_the_same(table):
    text = markdown(table)
    header = next(line for line in text.splitlines() if line.startswith("| method"))
    assert "mIoU ↑" in header
    assert text.count("**") == 2 * len(table.metrics)
    assert "≈ " in text
    (first, *_) = csv.DictReader(io.StringIO(comma_separated(table)))
    assert float(first["mIoU"]) == table.as_dict()["good"]["mIoU"]["value"]
    assert first["mIoU verdict"] in ("best", "like best")
    tex = latex(table)
    assert tex.count("\\\\") == 1 + len(table.methods)
    assert re.search(r"\\textbf\{\d", tex)
    assert not re.search(r"[↑≈]", tex.split("\\begin")[1])
    assert terminal(table).row_count == 3


def test_latex_escapes():
    results = {"a_b:c=1%": as_columns([{"sample": "x", "f1": 0.5}])}
    tex = latex(tabulate(build("segmentation", {}), "", results))
    assert r"a\_b:c=1\%" in tex


def test_columns_of_parts_of_different_kinds():
    whole = joined(
        [
            as_columns([{"sample": "a", "x": 1.0, "c": [1.0, 2.0]}]),
            as_columns([{"sample": "b", "error": "broken"}]),
            as_columns([{"sample": "c", "x": None, "c": [3.0, 4.0]}]),
        ]
    )
    assert whole["sample"].tolist() == ["a", "b", "c"]
    assert np.isnan(whole["x"]).tolist() == [False, True, True]
    assert whole["c"][2].tolist() == [3, 4]
    assert np.isnan(whole["c"][1]).all()
    assert whole["error"].tolist() == [None, "broken", None]


def test_curves_are_means():
    judged = build("perturbation", {})
    name = "negative_predicted_logit"
    results = {
        "a": as_columns([{"sample": str(n), name: [-1.0 * n] * 10} for n in range(3)]),
        "b": as_columns([{"sample": str(n), name: [0.5] * 10} for n in range(3)]),
    }
    from whence.benchmark.curves import means

    (curve,) = judged.curves(results)
    assert means(curve, results)["a"].tolist() == [-1.0] * 10
    figure = drawn([curve], results, "A title")
    colors = set(
        figure.to_image().convert("P", palette=1, colors=16).convert("RGB").getcolors()[0][1:]
    )
    assert colors
    assert drawn([], results, "A title") is None
