"""Rows of results: types of scores, and rows that can be read back."""

import math

import pytest
import torch

from whence.distributed.rows import RowForm, RowMaker, make_error_row, make_table, read_row
from whence.errors import WhenceError
from whence.explanation import Explanation

pytest.importorskip("pyarrow")

HALF = RowForm(scores="float16", units=4)


def make_row(*scores: float, form: RowForm = HALF):
    explanation = Explanation(
        torch.tensor([scores]), torch.tensor([1]), torch.zeros(1, 2), target_names=["dog"]
    )
    return RowMaker(explanation, None, form, "f").make(0, "a", [])


@pytest.mark.filterwarnings("error")
def test_scores_too_large_for_float16_are_an_error_and_no_warning():
    with pytest.raises(WhenceError, match="too large for float16"):
        make_row(1.0, 2.0, 3.0, 1e6)
    form = RowForm(units=4)
    assert make_row(1.0, 2.0, 3.0, 1e6, form=form)["scores"].tolist() == [1.0, 2.0, 3.0, 1e6]


def test_scores_that_float16_loses_are_noted():
    assert make_row(0.0, 0.25, 0.5, -1.0)["notes"] == []
    assert make_row(0.0, 0.0, 0.0, 0.0)["notes"] == []
    (note,) = make_row(0.0, 1e-9, 2e-9, -1e-9)["notes"]
    assert "100%" in note


def test_rows_of_float16_beside_errors_are_read_back():
    rows = [make_row(0.0, 0.25, 0.5, -1.0), make_error_row("b", "It is damaged.", HALF, "f")]
    good, bad = make_table(rows, HALF).to_pylist()
    again = read_row(good, {"method": "tiba"}, None)
    assert again.scores.tolist() == [[0.0, 0.25, 0.5, -1.0]]
    assert (again.target.tolist(), again.target_names) == ([1], ["dog"])
    assert all(math.isnan(score) for score in bad["scores"])
    with pytest.raises(WhenceError, match="'b' was not explained: It is damaged"):
        read_row(bad, {}, None)
