"""Arranging photos in mosaics, and putting their pixels together."""

from collections import Counter

import pytest
import torch

from whence import WhenceError
from whence.benchmark.mosaics import arrange_mosaics, assemble_mosaic, parse_grid


@pytest.mark.parametrize("counts", [[5, 5, 5, 5], [7, 1, 1, 1, 1], [3, 2, 2, 2, 1], [1] * 30])
@pytest.mark.parametrize("cells", [2, 4])
def test_mosaics_are_of_different_classes_and_as_many_as_can_be(counts, cells):
    classes = {f"{one}-{at}": one for one, count in enumerate(counts) for at in range(count)}
    mosaics = arrange_mosaics(classes, cells, seed=0)
    used = Counter(name for mosaic in mosaics for name in mosaic)
    assert max(used.values()) == 1
    assert set(used) <= set(classes)
    assert all(len({classes[name] for name in mosaic}) == cells for mosaic in mosaics)
    # m mosaics take at most m photos of a class, and need `cells` photos each.
    possible = [m for m in range(40) if sum(min(m, count) for count in counts) >= m * cells]
    assert len(mosaics) == max(possible)


def test_mosaics_depend_on_the_seed_and_not_on_the_order():
    classes = {f"{at}": at % 6 for at in range(30)}
    mosaics = arrange_mosaics(classes, 4, seed=1)
    assert mosaics == arrange_mosaics(dict(reversed(classes.items())), 4, seed=1)
    assert mosaics != arrange_mosaics(classes, 4, seed=2)
    assert arrange_mosaics({"a": 0, "b": 0}, 2, seed=0) == []


def test_cells_hold_the_means_of_what_they_cover():
    photos = [torch.full((3, 8, 8), float(at)) for at in range(4)]
    photos[2][:, :4] = 10
    mosaic = assemble_mosaic(photos, (2, 2))
    assert mosaic.shape == (3, 8, 8)
    expected = torch.tensor([[0.0, 1], [0, 0]]).repeat_interleave(4, 0).repeat_interleave(4, 1)
    assert torch.allclose(mosaic[:, :4], expected[:4].expand(3, 4, 8))
    assert torch.allclose(mosaic[:, 4:, 4:], torch.tensor(3.0))
    assert mosaic[0, 4, 0] == pytest.approx(10, abs=0.6)
    assert mosaic[0, 7, 0] == pytest.approx(2, abs=0.6)
    assert mosaic[:, 4:, :4].mean() == pytest.approx(6, abs=0.1)


def test_full_cells_are_the_photos_themselves():
    photos = [torch.randn(3, 6, 4) for _ in range(6)]
    mosaic = assemble_mosaic(photos, (2, 3), resize=False)
    assert mosaic.shape == (3, 12, 12)
    for number, photo in enumerate(photos):
        row, column = divmod(number, 3)
        cell = mosaic[:, 6 * row : 6 * row + 6, 4 * column : 4 * column + 4]
        assert torch.equal(cell, photo)


def test_sizes_of_mosaics():
    assert parse_grid("3") == parse_grid("3x3") == (3, 3)
    assert parse_grid("1x2") == (1, 2)
    for wrong in ("0", "1", "1x1", "2x", "x", "2x2x2", "-2", "two", ""):
        with pytest.raises(WhenceError, match=f"3x3 or 1x2, not '{wrong}'"):
            parse_grid(wrong)
