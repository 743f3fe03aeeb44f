import pytest
import torch

from whence import WhenceError
from whence.metrics.deletion import count_units, rank_units
from whence.metrics.fidelity import compute_fidelity, draw_removed, removal_chances


def draw_plainly(scores, count, alpha, beta, noise):
    """Units to remove from the `count` highest, as the paper's code has it: a flag for each."""
    units = len(scores)
    order = sorted(range(units), key=lambda at: (-scores[at], at))
    ratio = alpha
    if count * alpha > beta * units:
        ratio = beta * units / count
    return [at in order[:count] and noise[at] < ratio for at in range(units)]


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.1), (0.9, 0.5), (1.0, 1.0)])
def test_removals_are_those_of_a_plain_loop(alpha, beta):
    scores = torch.randn(3, 10).round()  # ties
    scores[2] = 1.0
    noise = torch.rand(3, 4, 10, dtype=torch.float64)
    counts = count_units(10, (0.1, 0.3, 0.5, 1.0))
    chances = removal_chances(counts, 10, alpha, beta)
    found = draw_removed(rank_units(scores, "highest"), counts, chances, noise)
    assert found.shape == (3, 4, 4, 10)
    for at, map_scores in enumerate(scores.tolist()):
        for size, count in enumerate(counts.tolist()):
            for draw in range(4):
                given = noise[at, draw].tolist()
                expected = draw_plainly(map_scores, count, alpha, beta, given)
                assert found[at, size, draw].tolist() == expected


def test_a_share_beta_is_removed_on_average_at_most():
    counts = torch.arange(1, 197)
    chances = removal_chances(counts, 196)
    assert (chances * counts <= 0.1 * 196 + 1e-9).all()
    assert chances[:39].tolist() == [0.5] * 39
    # Inputs of different lengths have a bound of their own.
    found = removal_chances(torch.tensor([[2, 4], [2, 40]]), torch.tensor([[4], [40]]), 0.5, 0.1)
    assert found.tolist() == [[0.2, 0.1], [0.5, 0.1]]
    assert removal_chances(torch.tensor([0]), 5).tolist() == [0.5]


def test_nothing_is_drawn_from_units_that_are_no_part_of_the_input():
    allowed = torch.tensor([[True, True, False, False]])
    ranks = rank_units(torch.randn(1, 4), "lowest", allowed)
    found = draw_removed(ranks, torch.tensor([[2]]), torch.ones(1, 1), torch.zeros(1, 3, 4))
    assert found[0, 0].tolist() == [[True, True, False, False]] * 3


def test_fidelity_is_what_is_lost_on_average():
    clean = torch.tensor([1.0, 0.0])
    removed = torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]])
    assert compute_fidelity(clean, removed).tolist() == [[0.5, 1.0], [0.0, -1.0]]


def test_wrong_numbers_are_refused():
    for alpha, beta in ((0, 0.1), (0.5, 0), (1.5, 0.1), (0.5, 2)):
        with pytest.raises(WhenceError, match="alpha and beta"):
            removal_chances(torch.ones(1), 1, alpha, beta)
    with pytest.raises(WhenceError, match="fit together"):
        compute_fidelity(torch.ones(2), torch.ones(3, 2, 2))
