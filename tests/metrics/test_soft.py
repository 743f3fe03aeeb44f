import math

import pytest
import torch

from whence.errors import WhenceError
from whence.metrics.soft import compute_soft_figures, scale_to_chances


def test_scores_are_scaled_within_their_text():
    scores = torch.tensor([[1.0, 3, 2, 99], [5.0, 5, 5, 99], [-2.0, 0, 99, 99]])
    found = scale_to_chances(scores, torch.tensor([3, 3, 2])).tolist()
    assert found == [[0, 1, 0.5, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    with pytest.raises(WhenceError, match="not numbers"):
        scale_to_chances(scores * math.nan, torch.tensor([3, 3, 2]))


def test_soft_figures_by_their_formula():
    full, empty = [0.9, 0.6, 0.5], [0.4, 0.6, 0.7]
    kept = [[0.8, 0.95], [0.1, 0.2], [0.1, 0.9]]
    dropped = [[0.5, 0.3], [0.1, 0.2], [0.1, 0.9]]
    found = compute_soft_figures(*map(torch.tensor, (full, kept, dropped, empty)))
    for n in range(3):
        whole = 1 - max(0, full[n] - empty[n])  # the sufficiency of nothing
        sufficiency = sum(1 - max(0, full[n] - p) for p in kept[n]) / 2
        loss = sum(max(0, full[n] - p) for p in dropped[n]) / 2
        expected = [0.0, 0.0]
        if whole < 1:
            expected = [(sufficiency - whole) / (1 - whole), loss / (1 - whole)]
        pair = [float(found[name][n]) for name in ("soft_sufficiency", "soft_comprehensiveness")]
        assert pair == pytest.approx([min(1, max(0, one)) for one in expected], abs=1e-6)


def test_wrong_shapes_are_refused():
    with pytest.raises(WhenceError, match=r"\(n, draws\)"):
        compute_soft_figures(*[torch.ones(2)] * 4)
