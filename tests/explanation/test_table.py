"""Scores as lines of a table."""

import pytest
import torch

from whence.explanation import Explanation
from whence.explanation.table import list_highest_units, list_unit_records


@pytest.mark.parametrize("grid", [(12,), (3, 4), (2, 2, 3)])
def test_the_highest_units_are_the_first_of_all_in_order(grid):
    scores = torch.randint(-3, 4, (1, 2, 12), generator=torch.Generator().manual_seed(0)).float()
    explanation = Explanation(scores, torch.tensor([[0, 1]]), torch.zeros(1, 2), grid)
    for target in range(2):
        records = [one for one in list_unit_records(explanation) if one["class"] == target]
        records.sort(key=lambda one: -one["score"])  # equal ones stay in their order
        about = ("class", "target", "probability", "x", "y")
        plain = [{k: v for k, v in one.items() if k not in about} for one in records[:5]]
        assert list_highest_units(explanation, target, 5) == plain
