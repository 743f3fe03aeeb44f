import torch

from whence._util.random import SeededRandom


def test_draws_depend_on_the_seed_alone():
    before = torch.random.get_rng_state()
    one, again, other = (SeededRandom(seed) for seed in (3, 3, 4))
    first = one.draw_uniform(2, 3)
    assert torch.equal(first, torch.rand((2, 3), generator=torch.Generator().manual_seed(3)))
    assert torch.equal(first, again.draw_uniform(2, 3))
    assert not torch.equal(first, other.draw_uniform(2, 3))
    assert torch.equal(one.draw_normal(5), again.draw_normal(5))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_integers_and_subsets_stay_below_the_limit():
    random = SeededRandom(0)
    assert set(random.draw_integers(3, 100)) == {0, 1, 2}
    subset = random.draw_subset(4, 10)
    assert subset == sorted(set(subset))
    assert len(subset) == 4
    assert random.draw_subset(9, 5) == [0, 1, 2, 3, 4]
