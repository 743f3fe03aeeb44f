import math

import pytest
import torch

from whence.errors import WhenceError
from whence.metrics.context import SHARES, compute_drops
from whence.metrics.cues import compare_with_cues, find_passage


def compare_plainly(scores, cues, allowed):
    ranked = [n for n, may in enumerate(allowed) if may]
    hits = [n for n in ranked if cues[n]]
    if not hits:
        return None
    best = max(scores[n] for n in hits)
    rank = 1
    for n in ranked:
        if not cues[n] and scores[n] >= best:
            rank += 1
    whole = sum(max(scores[n], 0) for n in ranked)
    part = sum(max(scores[n], 0) for n in hits)
    return float(rank == 1), 1 / rank, part / whole if whole else 0.0


CASES = {
    "first": ([1.0, 5, 2, -3], [0, 1, 0, 0], [1, 1, 1, 1]),
    "tied with another": ([1.0, 5, 5, 0], [0, 1, 0, 0], [1, 1, 1, 1]),
    "constant": ([2.0, 2, 2, 2], [1, 0, 0, 0], [1, 1, 1, 1]),
    "without the highest": ([9.0, 5, 2, 1], [0, 1, 0, 0], [0, 1, 1, 1]),
    "two tokens": ([1.0, 0, 3, 2], [1, 0, 1, 0], [1, 1, 1, 1]),
    "nothing positive": ([-1.0, -2, -3, -4], [0, 0, 1, 0], [1, 1, 1, 1]),
    "no cue": ([1.0, 2, 3, 4], [0, 0, 0, 0], [1, 1, 1, 1]),
    "cue left out": ([1.0, 2, 3, 4], [1, 0, 0, 0], [0, 1, 1, 1]),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cues_against_plain_loops(case):
    scores, cues, allowed = CASES[case]
    found = compare_with_cues(
        torch.tensor([scores]), torch.tensor([cues]).bool(), torch.tensor([allowed]).bool()
    )
    figures = [float(found[name]) for name in ("first", "reciprocal_rank", "share")]
    expected = compare_plainly(scores, cues, allowed)
    if expected is None:
        assert all(map(math.isnan, figures))
    else:
        assert figures == pytest.approx(expected)


def test_a_constant_map_finds_no_cue():
    cues = torch.eye(4).bool()
    found = compare_with_cues(torch.ones(4, 4), cues, torch.ones(4, 4).bool())
    assert found["first"].tolist() == [0] * 4
    assert found["reciprocal_rank"].tolist() == [0.25] * 4


@pytest.mark.parametrize("seed", range(3))
def test_passages_against_plain_loops(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (6, 12), generator=generator).float()
    passages = torch.randint(-1, 3, (6, 12), generator=generator)
    passages[:, 0], passages[:, 1] = 2, 0  # the right ones have a token
    right = torch.tensor([0, 2, 0, 2, 0, 2])
    found = find_passage(scores, passages, right)
    for n in range(6):
        tokens = {}
        for score, number in zip(scores[n].tolist(), passages[n].tolist(), strict=True):
            if number >= 0:
                tokens.setdefault(number, []).append(score)
        own = tokens.pop(int(right[n]))
        better = sum(sum(other) >= sum(own) for other in tokens.values())
        denser = sum(sum(o) / len(o) >= sum(own) / len(own) for o in tokens.values())
        assert found["by_sum"][n] == (better == 0)
        assert found["by_mean"][n] == (denser == 0)
        assert found["reciprocal_rank"][n] == pytest.approx(1 / (1 + better))


def test_wrong_shapes_and_numbers_are_refused():
    ones = torch.ones(1, 3)
    with pytest.raises(WhenceError, match=r"\(n, tokens\)"):
        compare_with_cues(ones, ones.bool()[:, :2], ones.bool())
    with pytest.raises(WhenceError, match="not numbers"):
        compare_with_cues(ones * math.nan, ones.bool(), ones.bool())
    with pytest.raises(WhenceError, match="one of 1"):
        find_passage(ones, torch.zeros(1, 3).long(), torch.tensor([1]))


def test_drops_are_losses_of_the_whole():
    full, without = torch.tensor([-1.0, -2]), torch.tensor([[-1.5, -3, -1, -2, -9], [-2.0] * 5])
    drops = compute_drops(full, without)
    assert drops.shape == (2, len(SHARES))
    assert drops[0].tolist() == [0.5, 2, 0, 1, 8]
    assert drops[1].tolist() == [0] * 5
    with pytest.raises(WhenceError, match=r"\(n, shares\)"):
        compute_drops(full, full)
