"""Grids that fields of tokens form, against grids that are known because they were cut."""

import itertools
import random

import pytest
import torch

from whence.layout import TokenFields
from whence.layout.lattice import Lattice, find_lattice, find_rows, separate_intervals

Box = tuple[tuple[int, int], ...]


def make_fields(shape: tuple[int, ...], *samples: list[Box | None]) -> TokenFields:
    """Fields of boxes, one for each token, or of nothing."""
    masks = torch.zeros(len(samples[0]), len(samples), *shape, dtype=torch.long)
    for sample, boxes in enumerate(samples):
        for token, box in enumerate(boxes):
            if box is not None:
                masks[token, sample][tuple(slice(*interval) for interval in box)] = 1
    return TokenFields.from_masks(masks)


def cut(*axes: list[tuple[int, int]]) -> list[Box]:
    """All products of intervals, in reading order."""
    return list(itertools.product(*axes))


THIRDS, HALVES = [(0, 2), (2, 4), (4, 6)], [(0, 3), (3, 6)]


def test_a_grid_of_an_image_has_its_last_two_dimensions():
    fields = make_fields((3, 6, 6), cut([(0, 3)], THIRDS, HALVES))
    assert find_lattice(fields) == Lattice(
        (1, 2), (tuple(THIRDS), tuple(HALVES)), ((0, 1, 2, 3, 4, 5),)
    )
    assert find_lattice(fields).grid == (3, 2)


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((3, 6, 6), [[(0, 3)], [(0, 6)], THIRDS], (1, 2)),
        ((3, 6, 6), [[(0, 3)], THIRDS, [(0, 6)]], (1, 2)),
        ((3, 6, 6), [[(0, 3)], [(0, 6)], [(0, 6)]], (1, 2)),
        ((3, 6, 6), [[(0, 1), (1, 3)], THIRDS, HALVES], (0, 1, 2)),
        ((6, 3, 6, 6), [HALVES, [(0, 3)], THIRDS, [(0, 6)]], (0, 2, 3)),
        ((3, 6, 6, 6), [[(0, 3)], HALVES, THIRDS, HALVES], (1, 2, 3)),
        ((6, 5), [THIRDS, [(0, 5)]], (0,)),
        ((5, 6), [[(0, 5)], THIRDS], (1,)),
        ((6, 6), [HALVES, THIRDS], (0, 1)),
        ((6, 5), [[(0, 6)], [(0, 5)]], (0,)),
        ((6,), [THIRDS], (0,)),
        ((6,), [[(1, 5)]], (0,)),
    ],
)
def test_axes_are_those_that_are_cut_and_the_plane(shape, axes, expected):
    boxes = cut(*axes)
    order = random.Random(0).sample(range(len(boxes)), len(boxes))
    tokens: list[Box | None] = [None] * (len(boxes) + 2)  # the first and the last read nothing
    for number, token in enumerate(order):
        tokens[1 + token] = boxes[number]
    found = find_lattice(make_fields(shape, tokens))
    cells = tuple(tuple(axes[axis]) for axis in expected)
    assert found == Lattice(expected, cells, (tuple(1 + token for token in order),))


SQUARE = cut([(0, 1)], HALVES, HALVES)


@pytest.mark.parametrize(
    "boxes",
    [
        [None, None, None, None],
        SQUARE[:3],
        [*SQUARE, SQUARE[0]],
        [SQUARE[0], SQUARE[0], SQUARE[1], SQUARE[2]],  # as many as cells, and one has two
        [*SQUARE[:3], ((0, 1), (4, 5), (3, 6))],  # rows that lie in one another
        [*SQUARE[:3], ((0, 1), (3, 6), (4, 5))],
        [((0, 1), (0, 6), (0, 6)), ((0, 1), (2, 4), (2, 4))],
        cut([(0, 1)], [(0, 2), (2, 6), (3, 5)], [(0, 6)]),
    ],
)
def test_what_is_no_grid(boxes):
    assert find_lattice(make_fields((1, 6, 6), boxes)) is None


def test_a_field_with_a_hole_forms_no_grid():
    masks = torch.zeros(2, 1, 6, dtype=torch.long)
    masks[0, 0, [0, 2]] = masks[1, 0, 3:] = 1
    assert find_lattice(TokenFields.from_masks(masks)) is None


# Samples -----------------------------------------------------------------------------------------
def test_a_token_may_be_empty_in_any_sample():
    row = cut(THIRDS)
    for missing in range(3):
        partly = [None if token == missing else box for token, box in enumerate(row)]
        for samples in ((row, partly), (partly, row), (partly, row, row)):
            found = find_lattice(make_fields((6,), *samples))
            assert found == Lattice((0,), (tuple(THIRDS),), ((0, 1, 2),))
    halves = ([row[0], None, None], [None, row[1], row[2]])
    assert find_lattice(make_fields((6,), *halves)).units == ((0, 1, 2),)


def test_samples_may_have_the_same_grid_in_another_order():
    row = cut(THIRDS)
    orders = [(0, 1, 2), (2, 1, 0), (1, 2, 0)]
    samples = [[row[order.index(token)] for token in range(3)] for order in orders]
    assert find_lattice(make_fields((6,), *samples)).units == tuple(orders)
    single = cut([(0, 1), (1, 2)])
    assert find_lattice(make_fields((2,), single, single[::-1])).units == ((0, 1), (1, 0))


@pytest.mark.parametrize(
    "other",
    [
        cut([(0, 3), (4, 6)], [(0, 6)]),  # only a start differs
        cut([(0, 2), (3, 6)], [(0, 6)]),  # only a stop differs
        cut([(0, 6)], HALVES),
        cut(HALVES, [(1, 6)]),
        [((0, 3), (0, 6)), ((0, 3), (0, 6))],  # no grid
    ],
)
def test_samples_of_different_grids_have_none(other):
    same = cut(HALVES, [(0, 6)])
    swapped = same[::-1]
    # Intervals along an axis that is not one of the grid may differ.
    expected = None if other != cut(HALVES, [(1, 6)]) else ((0, 1), (0, 1))
    for samples in ((same, other), (other, same)):
        found = find_lattice(make_fields((6, 6), *samples))
        assert (found and found.units) == expected
    found = find_lattice(make_fields((6, 6), same, swapped, other))
    assert (found and found.units) == (expected and ((0, 1), (1, 0), (0, 1)))


# Rows --------------------------------------------------------------------------------------------
def rows_of(*samples: list[int | None], length: int) -> TokenFields:
    """Fields of tokens that stand for one row each."""
    boxes = [[None if row is None else ((row, row + 1),) for row in rows] for rows in samples]
    return make_fields((length,), *boxes)


def test_rows_in_any_order_and_rows_without_a_token():
    assert find_rows(rows_of([2, None, 0], [2, None, 0], length=3)) == ((2, -1, 0),)
    assert find_rows(rows_of([2, None, 0], [1, 0, None], length=3)) == ((2, -1, 0), (1, 0, -1))
    assert find_rows(rows_of([None], length=2)) == ((-1, -1),)


def test_rows_that_tokens_mix_with_neighbours():
    mixed = [((max(0, n - 1), min(4, n + 2)),) for n in range(4)]
    assert find_rows(make_fields((4,), [None, *mixed])) == ((1, 2, 3, 4),)
    assert find_rows(make_fields((4,), [*mixed[::-1], None])) == ((3, 2, 1, 0),)


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 2),), ((2, 4),)],  # fewer tokens than rows
        [((0, 1),), ((0, 1),), ((1, 2),), ((2, 3),)],  # two tokens of one row
        [((0, 4),), ((1, 2),), ((2, 3),), ((3, 4),)],  # rows that lie in another
    ],
)
def test_tokens_that_are_no_rows(boxes):
    assert find_rows(make_fields((4,), boxes)) is None


# Cells -------------------------------------------------------------------------------------------
def find_nearest(intervals: list[tuple[int, int]], index: int) -> int | None:
    """The interval that has an index, and of several that whose middle is nearest, or the later."""
    having = [n for n, (start, stop) in enumerate(intervals) if start <= index < stop]
    return min(having, key=lambda n: (abs(sum(intervals[n]) - 1 - 2 * index), -n), default=None)


def list_windows(size: int, stride: int, count: int, first: int = 0) -> list[tuple[int, int]]:
    return [(first + n * stride, first + n * stride + size) for n in range(count)]


@pytest.mark.parametrize(
    "intervals",
    [
        *(list_windows(size, stride, 5) for size in (1, 2, 3, 4, 5, 7, 16) for stride in (1, 2, 3)),
        list_windows(25, 20, 4, first=3),
        [(0, 3), (0, 4), (1, 5), (2, 5)],  # cut at the edges
        [(0, 10), (8, 40)],
        [(0, 40), (38, 42)],
        [(2, 4), (4, 6), (7, 9)],
        [(5, 6)],
    ],
)
def test_an_index_belongs_to_the_nearest_interval(intervals):
    cells = separate_intervals(intervals)
    assert len(cells) == len(intervals)
    for index in range(intervals[-1][1] + 2):
        owners = [n for n, (start, stop) in enumerate(cells) if start <= index < stop]
        nearest = find_nearest(intervals, index)
        assert owners == ([] if nearest is None else [nearest])


def test_cells_of_a_grid_of_overlapping_fields():
    windows = list_windows(4, 2, 3)
    found = find_lattice(make_fields((1, 8, 8), cut([(0, 1)], windows, windows)))
    assert found.cells == (((0, 3), (3, 5), (5, 8)),) * 2
