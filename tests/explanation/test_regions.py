"""Peak regions: made-up maps with obvious answers, plain loops, and noise that gets none."""

from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.explanation.regions import find_highest, find_regions, label_parts, measure_touching

Map = NDArray[np.float64]


def make_blob(at: tuple[slice, slice], side: int = 10, ground: float = 0.0) -> Map:
    scores = np.full((side, side), ground)
    scores[at] = 1.0
    return scores


def make_random_map(seed: int) -> Map:
    """Blobs of both signs on a ground of almost nothing."""
    random = np.random.default_rng(seed)
    rows, columns = random.integers(6, 17, 2)
    y, x = np.mgrid[:rows, :columns]
    scores = random.random((rows, columns)) * 0.01
    for sign in (1, 1, -1):
        center, width = random.random(2) * (rows, columns), random.uniform(0.5, 2.5)
        distance = (y - center[0]) ** 2 + (x - center[1]) ** 2
        scores += sign * random.uniform(0.5, 2) * np.exp(-distance / width**2)
    return scores


def test_one_square_is_one_region() -> None:
    scores = make_blob((slice(1, 3), slice(6, 9)))
    (region,) = find_regions(scores)
    assert region.center == pytest.approx((0.75, 0.2))
    assert (region.area, region.evidence) == pytest.approx((0.06, 1.0))
    assert (region.mask == (scores == 1)).all()


def test_two_squares_are_two_regions_the_stronger_first() -> None:
    scores = make_blob((slice(0, 2), slice(0, 2)))
    scores[7:10, 7:10] = 1.0
    regions = find_regions(scores)
    assert [region.evidence for region in regions] == pytest.approx([9 / 13, 4 / 13])
    assert [region.center for region in regions] == [
        pytest.approx((0.85, 0.85)),
        pytest.approx((0.1, 0.1)),
    ]


def test_a_corner_joins_and_a_gap_parts() -> None:
    scores = np.zeros((10, 10))
    scores[2, 2] = scores[3, 3] = 1.0
    joined = find_regions(scores)
    scores[3, 3], scores[4, 4] = 0.0, 1.0
    parted = find_regions(scores)
    assert len(joined) == 1
    assert len(parted) == 2


def test_evidence_against_is_that_below_zero() -> None:
    scores = torch.zeros(1, 100)
    scores[0, :2], scores[0, -2:] = 3.0, -1.0
    explanation = Explanation(scores, torch.tensor([0]), torch.zeros(1, 2), grid=(10, 10))
    (supporting,) = explanation.regions()
    (opposing,) = explanation.regions(against=True)
    assert supporting.center == pytest.approx((0.1, 0.05))
    assert opposing.center == pytest.approx((0.9, 0.95))
    assert opposing.evidence == pytest.approx(1.0)


@pytest.mark.parametrize(
    "scores",
    [
        np.zeros((10, 10)),
        -np.ones((10, 10)),
        np.ones((10, 10)),
        np.ones((1, 1)),
        make_blob((slice(2, 5), slice(2, 5)), ground=0.9),
        np.indices((10, 10)).sum(axis=0) % 2.0,  # a chessboard
    ],
)
def test_flat_maps_have_none(scores: Map) -> None:
    assert find_regions(scores) == []


@pytest.mark.parametrize("draw", ["normal", "random", "exponential", "lognormal"])
@pytest.mark.parametrize("side", [7, 14])
def test_noise_has_none_but_in_two_of_a_hundred(draw: str, side: int) -> None:
    random = np.random.default_rng(side)
    maps = [getattr(random, draw)(size=(side, side)) for _ in range(100)]
    assert sum(bool(find_regions(one)) for one in maps) <= 2


@pytest.mark.parametrize("seed", range(25))
def test_shares_are_those_of_plain_loops(seed: int) -> None:
    scores = make_random_map(seed)
    total = sum(score for score in scores.flat if score > 0)
    regions = find_regions(scores)
    for region in regions:
        cells = [(r, c) for r, c in np.ndindex(scores.shape) if region.mask[r, c]]
        held = sum(scores[cell] for cell in cells)
        x = sum(scores[r, c] * (c + 0.5) for r, c in cells) / held / scores.shape[1]
        y = sum(scores[r, c] * (r + 0.5) for r, c in cells) / held / scores.shape[0]
        assert region.area == pytest.approx(len(cells) / scores.size)
        assert region.evidence == pytest.approx(held / total)
        assert region.center == pytest.approx((x, y))
    assert 1 <= len(regions) <= 5
    union = np.any([region.mask for region in regions], axis=0)
    assert sum(region.mask.sum() for region in regions) == union.sum()
    turned = find_regions(np.ascontiguousarray(scores[::-1, ::-1].T))
    assert [one.evidence for one in turned] == pytest.approx([one.evidence for one in regions])


@pytest.mark.parametrize("seed", range(10))
def test_the_highest_patches_are_the_fewest_that_hold_half(seed: int) -> None:
    scores = np.maximum(make_random_map(seed), 0)
    ordered = sorted(scores.flat, reverse=True)
    fewest = next(n for n in range(1, len(ordered)) if sum(ordered[:n]) >= scores.sum() / 2)
    highest = find_highest(scores, scores.sum() / 2)
    assert highest.sum() == fewest
    assert scores[highest].min() >= scores[~highest].max()


def test_touching_is_measured_against_all_ways_to_mark_cells() -> None:
    shape, marked = (3, 4), 4
    cells = list(np.ndindex(shape))

    def count_pairs(chosen: tuple[tuple[int, int], ...]) -> int:
        pairs = combinations(chosen, 2)
        return sum(max(abs(a - c), abs(b - d)) == 1 for (a, b), (c, d) in pairs)

    counts = [count_pairs(chosen) for chosen in combinations(cells, marked)]
    mask = np.zeros(shape, dtype=bool)
    mask[:2, :2] = True
    expected = (count_pairs(((0, 0), (0, 1), (1, 0), (1, 1))) - np.mean(counts)) / np.std(counts)
    assert measure_touching(mask) == pytest.approx(expected)


def test_parts_are_those_of_scipy() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    mask = np.random.default_rng(0).random((20, 31)) < 0.35
    expected, count = ndimage.label(mask, np.ones((3, 3)))
    labels = label_parts(mask)
    assert labels.max() == count
    assert len({*zip(labels.flat, expected.flat, strict=True)}) == count + 1  # one for the ground


def test_texts_have_no_regions() -> None:
    explanation = Explanation(torch.ones(1, 4), torch.tensor([0]), torch.zeros(1, 2))
    with pytest.raises(WhenceError, match="Regions are of photos"):
        explanation.regions()
