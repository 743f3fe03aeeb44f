"""Outlines of marked cells of a grid, as polygons."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# (x, y) as shares of the width and the height.
Point = tuple[float, float]
Corner = tuple[int, int]


def trace_outlines(mask: NDArray[np.bool_]) -> list[list[Point]]:
    """Trace the borders of the marked cells of a grid as closed polygons.

    Args:
        mask: (rows, columns), such as `PeakRegion.mask`.

    Returns:
        Polygons of corners, (x, y) as shares of the grid's width and height; the first corner is
        not repeated at the end. A hole has a polygon of its own.
    """
    rows, columns = mask.shape
    steps = _list_border_steps(mask)
    polygons = []
    while steps:
        corners = _follow_border(steps)
        polygons.append([(x / columns, y / rows) for x, y in corners])
    return polygons


def _list_border_steps(mask: NDArray[np.bool_]) -> dict[Corner, list[Corner]]:
    """From each corner on a border, the corners that follow, with marked cells at the right."""
    framed = np.pad(mask, 1)
    steps: dict[Corner, list[Corner]] = {}
    for row, column in np.argwhere(mask).tolist():
        around = ((0, 1), (1, 2), (2, 1), (1, 0))  # above, right, below, left, in `framed`
        corners = ((0, 0), (1, 0), (1, 1), (0, 1))
        for side, (down, right) in enumerate(around):
            if not framed[row + down, column + right]:
                start, end = corners[side], corners[(side + 1) % 4]
                place = column + start[0], row + start[1]
                steps.setdefault(place, []).append((column + end[0], row + end[1]))
    return steps


def _follow_border(steps: dict[Corner, list[Corner]]) -> list[Corner]:
    """Take one closed way out of the steps; return the corners at which it turns."""
    start = at = next(iter(steps))
    way = [start]
    while len(way) == 1 or at != start:
        ends = steps[at]
        # Where two cells touch by a corner, the way stays at the cell that it came along.
        before = way[-2] if len(way) > 1 else at
        right = at[0] - (at[1] - before[1]), at[1] + (at[0] - before[0])
        end = right if right in ends else ends[0]
        ends.remove(end)
        if not ends:
            del steps[at]
        way.append(end)
        at = end
    del way[-1]
    return [
        corner
        for before, corner, after in zip([way[-1], *way], way, [*way[1:], way[0]], strict=False)
        if (before[0] - corner[0]) != (corner[0] - after[0])
        or (before[1] - corner[1]) != (corner[1] - after[1])
    ]
