"""Rows that are drawn at random from a result."""

import collections

import numpy as np
import pytest

from whence.distributed import ResultFolder, RunDescription
from whence.distributed.rows import RowForm, make_error_row, make_table
from whence.distributed.sampling import draw_rows

pytest.importorskip("pyarrow")
FORM = RowForm(units=4)


def make_row(name, number):
    scores = np.full(4, number, np.float32)
    lists = {column: [] for column in ("tokens", "words", "checks", "notes")}
    first = {"id": name, "target": 0, "name": "cat" if number % 3 else "dog", "probability": 0.5}
    return {**first, "scores": scores, "grid": [2, 2], **lists, "error": "", "fingerprint": "f"}


def write_result(place, order, part_rows):
    """100 rows in some order, of which every tenth is an error."""
    folder = ResultFolder(place)
    folder.start(RunDescription("f", {}, "image", FORM), {})
    rows = [
        make_error_row(f"p{n:03}", f"Broken {n % 20}.", FORM, "f")
        if n % 10 == 0
        else make_row(f"p{n:03}", n)
        for n in order
    ]
    for start in range(0, len(rows), part_rows):
        folder.write_part(make_table(rows[start : start + part_rows], FORM))
    return ResultFolder(place)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_result(tmp_path_factory.mktemp("sampling") / "a", range(100), 40)


def test_all_rows_are_counted(folder):
    drawn = draw_rows(folder, 1000)
    assert (drawn.explained, drawn.failed) == (90, 10)
    assert drawn.errors == {"Broken 0.": 5, "Broken 10.": 5}
    wanted = collections.Counter("cat" if n % 3 else "dog" for n in range(100) if n % 10)
    assert {name: one.inputs for name, one in drawn.classes.items()} == wanted
    assert {one.probability for one in drawn.classes.values()} == {0.5}
    assert [row["id"] for row in drawn.rows] == [f"p{n:03}" for n in range(100) if n % 10]
    assert [row["id"] for row in drawn.failures] == [f"p{n:03}" for n in range(0, 100, 10)]


def test_the_draw_does_not_depend_on_the_order_of_rows(folder, tmp_path):
    order = np.random.default_rng(0).permutation(100).tolist()
    other = write_result(tmp_path / "b", order, 7)
    one, two = draw_rows(folder, 12), draw_rows(other, 12)
    assert [row["id"] for row in one.rows] == [row["id"] for row in two.rows]
    assert len(one.rows) == 12
    assert all(row["scores"] == [int(row["id"][1:])] * 4 for row in two.rows)
    assert [row["id"] for row in one.rows] != [row["id"] for row in draw_rows(folder, 12, 1).rows]


def test_every_row_is_as_likely(folder):
    draws = 100
    counts = collections.Counter(
        row["id"] for seed in range(draws) for row in draw_rows(folder, 9, seed).rows
    )
    assert len(counts) == 90
    # A tenth of the draws has it: 10, with a standard deviation of 3.
    assert max(abs(count - draws / 10) for count in counts.values()) < 5 * 3
