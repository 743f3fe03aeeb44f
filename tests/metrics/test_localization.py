"""Shares of maps inside of masks, boxes and cells against plain loops."""

import pytest
import torch

from tests.metrics.test_segmentation import KINDS, case
from whence.metrics.localization import compute_area, draw_cells, enclose_objects, localize
from whence.metrics.segmentation import has_object


def localize_plainly(one, mask):
    inside = whole = 0.0
    object_pixels = counted = 0
    for row, marks in zip(one, mask, strict=True):
        for score, mark in zip(row, marks, strict=True):
            if mark == 255:
                continue
            counted += 1
            whole += max(score, 0)
            if mark == 1:
                object_pixels += 1
                inside += max(score, 0)
    share = inside / whole if whole else 0.0
    return share, share / (object_pixels / counted) if object_pixels else 0.0


@pytest.mark.parametrize("kind", [*KINDS, "nothing above 0"])
def test_shares_are_the_plain_ones(kind):
    maps, masks = case(kind)
    if kind == "nothing above 0":
        maps = -maps.abs()
    found = localize(maps, masks)
    for at, (one, mask) in enumerate(zip(maps.double().tolist(), masks.tolist(), strict=True)):
        expected = localize_plainly(one, mask)
        assert (float(found["share"][at]), float(found["weighted"][at])) == pytest.approx(expected)
    if kind == "constant":
        assert found["weighted"].tolist() == pytest.approx([1] * 4), "whatever the object's size"


def enclose_plainly(mask):
    rows = [r for r, row in enumerate(mask) if 1 in row]
    columns = [c for row in mask for c, mark in enumerate(row) if mark == 1]
    return [
        [
            255
            if mark == 255
            else int(bool(rows) and rows[0] <= r <= rows[-1] and min(columns) <= c <= max(columns))
            for c, mark in enumerate(row)
        ]
        for r, row in enumerate(mask)
    ]


@pytest.mark.parametrize("kind", ["sparse", "no object", "all object", "all ignored"])
def test_boxes_around_masks(kind):
    _, masks = case("random" if kind == "sparse" else kind)
    if kind == "sparse":
        masks = torch.zeros_like(masks)
        masks[0, 3, 4] = masks[1, 2, 5] = masks[1, 7, 3] = masks[2, 0, 0] = 1
        masks[1, 4, 4] = 255
    found = enclose_objects(masks)
    assert found.tolist() == [enclose_plainly(mask) for mask in masks.tolist()]
    assert has_object(found).tolist() == has_object(masks).tolist()
    assert compute_area(found).tolist() == pytest.approx(
        [
            sum(mark == 1 for row in box for mark in row)
            / max(1, sum(mark != 255 for row in box for mark in row))
            for box in found.tolist()
        ]
    )


@pytest.mark.parametrize(("grid", "size"), [((2, 2), (8, 6)), ((3, 3), (32, 32)), ((1, 2), (5, 7))])
def test_cells_divide_the_picture(grid, size):
    cells = torch.arange(grid[0] * grid[1])
    masks = draw_cells(cells, grid, size)
    assert (masks.sum(0) == 1).all(), "every pixel is in one cell"
    for cell, mask in zip(cells.tolist(), masks, strict=True):
        row, column = divmod(cell, grid[1])
        rows = range(row * size[0] // grid[0], (row + 1) * size[0] // grid[0])
        columns = range(column * size[1] // grid[1], (column + 1) * size[1] // grid[1])
        expected = {(r, c) for r in rows for c in columns}
        assert {tuple(place) for place in mask.nonzero().tolist()} == expected
