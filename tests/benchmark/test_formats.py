"""The formats that tables are written in."""

import csv
import io
import re

from whence.benchmark import build_protocol
from whence.benchmark.columns import to_columns
from whence.benchmark.formats import to_csv, to_latex, to_markdown, to_terminal
from whence.benchmark.table import tabulate


def test_formats_tell_the_same(table):
    text = to_markdown(table)
    header = next(line for line in text.splitlines() if line.startswith("| method"))
    assert "mIoU ↑" in header
    assert text.count("**") == 2 * len(table.metrics)
    assert "≈ " in text
    (first, *_) = csv.DictReader(io.StringIO(to_csv(table)))
    assert float(first["mIoU"]) == table.to_dict()["good"]["mIoU"]["value"]
    assert first["mIoU verdict"] in ("best", "like best")
    tex = to_latex(table)
    assert tex.count("\\\\") == 1 + len(table.methods)
    assert re.search(r"\\textbf\{\d", tex)
    assert not re.search(r"[↑≈]", tex.split("\\begin")[1])
    assert to_terminal(table).row_count == 3


def test_latex_escapes():
    results = {"a_b:c=1%": to_columns([{"sample": "x", "f1": 0.5}])}
    tex = to_latex(tabulate(build_protocol("segmentation", {}), "", results))
    assert r"a\_b:c=1\%" in tex
