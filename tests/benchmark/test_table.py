"""Figures from rows, recomputed plainly."""

import pytest
import torch

from tests.benchmark.conftest import NUMBER
from whence.benchmark import build_protocol
from whence.benchmark.columns import to_columns
from whence.benchmark.table import tabulate
from whence.metrics.segmentation import pool_figures


def test_figures_are_those_of_the_rows(rows, table):
    for method, found in rows.items():
        cells = {
            name: torch.tensor([row[name] for row in found])
            for name in found[0]
            if name != "sample"
        }
        expected = pool_figures(cells)
        figures = table.to_dict()[method]
        assert figures["pixel accuracy"]["value"] == pytest.approx(100 * expected["pixel_accuracy"])
        assert figures["mIoU"]["value"] == pytest.approx(100 * expected["mIoU"])
        assert figures["mAP"]["value"] == pytest.approx(100 * expected["mAP"])
        assert figures["F1"]["value"] == pytest.approx(100 * expected["F1"])
        for cell in figures.values():
            assert cell["low"] <= cell["value"] <= cell["high"]
            assert cell["samples"] == NUMBER


def test_what_differs_from_the_best_and_what_does_not(table):
    best = table.find_best("mIoU")
    other = {"good": "alike", "alike": "good"}[best]
    figures = table.to_dict()
    assert figures[best]["mIoU"]["verdict"] == "best"
    assert figures[best]["mIoU"]["p"] is None
    assert figures[other]["mIoU"]["verdict"] == "like best"
    assert figures["bad"]["mIoU"]["verdict"] == "worse"
    assert figures["bad"]["mIoU"]["p"] < 0.01


def test_holm_corrects_over_methods(rows):
    results = {method: to_columns(found) for method, found in rows.items()}
    two = tabulate(
        build_protocol("segmentation", {}), "", {k: results[k] for k in ("good", "bad")}, 1
    )
    three = tabulate(
        build_protocol("segmentation", {}), "", {**results, "worst": results["bad"]}, 1
    )
    assert two.to_dict()["bad"]["mAP"]["p"] <= three.to_dict()["bad"]["mAP"]["p"]


def test_figures_are_of_the_samples_that_all_have():
    results = {
        "a": to_columns([{"sample": "x", "f1": 0.5}, {"sample": "y", "f1": 1.0}]),
        "b": to_columns([{"sample": "x", "f1": 0.4}, {"sample": "y", "f1": None}]),
        "c": to_columns([{"sample": "x"}, {"sample": "y"}]),
    }
    figures = tabulate(build_protocol("segmentation", {}), "", results).to_dict()
    assert figures["a"]["F1"]["value"] == pytest.approx(50)
    assert figures["a"]["F1"]["samples"] == 1
    assert figures["c"] == {}
