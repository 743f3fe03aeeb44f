"""Lattices: proof that the fields of tokens form a grid on the input, in any order of tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from whence.layout.fields import TokenFields

Interval = tuple[int, int]
"""The first index and one past the last."""
Cells = tuple[tuple[Interval, ...], ...]
"""For each axis, intervals that do not overlap."""


class Lattice(NamedTuple):
    """A grid of units on the input.

    Attributes:
        axes: The input's dimensions that the grid lies along, counted from the first after the
            batch.
        cells: For each axis, which indices belong to each of its rows or columns.
        units: For each sample, or once for all, the token of each unit in reading order; -1 if a
            unit has none.
    """

    axes: tuple[int, ...]
    cells: Cells
    units: tuple[tuple[int, ...], ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of rows, columns, ..."""
        return tuple(map(len, self.cells))


def find_lattice(fields: TokenFields) -> Lattice | None:
    """Find the grid that the fields of tokens form; None if they form none.

    They do if each field is a product of intervals, one along each axis, that are in order along
    each axis, and if exactly one token stands for each cell. Intervals may overlap: an index then
    belongs to the one whose middle is nearest.
    """
    if not fields.are_boxes:
        return None
    merged = _merge_samples(fields)
    if merged is not None:
        return _find_in_sample(merged, 0)
    samples = [_find_in_sample(fields, sample) for sample in range(len(fields.counts))]
    first = samples[0]
    if first is None or any(s is None or s[:2] != first[:2] for s in samples):
        return None
    return first._replace(units=tuple(s.units[0] for s in samples if s is not None))


def find_rows(fields: TokenFields) -> tuple[tuple[int, ...], ...] | None:
    """Find the token of each row of an input whose only dimension is rows, such as token ids.

    Returns:
        For each sample, or once for all, the token of each row; -1 if a row has none. None if
        tokens do not stand for single rows, and are not as many as these.
    """
    (length,) = fields.shape
    units = []
    for starts, counts in zip(fields.starts[..., 0], fields.counts, strict=True):
        tokens = counts.nonzero()[:, 0].tolist()
        rows = [int(starts[token]) for token in tokens]
        if len(set(rows)) < len(rows) or counts.max() > 1:
            return _find_mixed_rows(fields)
        of_row = dict(zip(rows, tokens, strict=True))
        units.append(tuple(of_row.get(row, -1) for row in range(length)))
    return tuple(units[:1] if len(set(units)) == 1 else units)


def _find_mixed_rows(fields: TokenFields) -> tuple[tuple[int, ...], ...] | None:
    """Rows that tokens mix with their neighbours, as a convolution does."""
    lattice = find_lattice(fields)
    return lattice.units if lattice is not None and lattice.grid == fields.shape else None


def _merge_samples(fields: TokenFields) -> TokenFields | None:
    """The fields of all samples as one, if they are the same wherever a token has any."""
    present = fields.counts > 0
    sample = present.int().argmax(0)
    every = sample.new_tensor(range(len(sample)))
    one = fields._replace(
        starts=fields.starts[sample, every][None],
        stops=fields.stops[sample, every][None],
        counts=fields.counts[sample, every][None],
    )
    same = (fields.starts == one.starts).all(-1) & (fields.stops == one.stops).all(-1)
    return one if bool((same | ~present).all()) else None


def _find_in_sample(fields: TokenFields, sample: int) -> Lattice | None:
    tokens = fields.counts[sample].nonzero()[:, 0]
    if not len(tokens):
        return None
    starts, stops = fields.starts[sample, tokens], fields.stops[sample, tokens]
    intervals = [_sort_intervals(starts[:, d], stops[:, d]) for d in range(len(fields.shape))]
    if any(one is None for one in intervals):
        return None
    known = [one for one in intervals if one is not None]
    # Images, frames and the like always lie along the last two dimensions, if in one cell.
    planar = range(len(known) - 2, len(known)) if len(known) > 2 else ()
    axes = tuple(d for d, one in enumerate(known) if len(one) > 1 or d in planar)
    axes = axes or (0,)
    size = math.prod(len(known[axis]) for axis in axes)
    if size != len(tokens):
        return None
    of_cell = {}
    boxes = zip(starts.tolist(), stops.tolist(), tokens.tolist(), strict=True)
    for start, stop, token in boxes:
        cell = 0
        for axis in axes:
            cell = cell * len(known[axis]) + known[axis][start[axis], stop[axis]]
        of_cell[cell] = token
    if len(of_cell) != size:
        return None
    cells = tuple(separate_intervals(list(known[axis])) for axis in axes)
    return Lattice(axes, cells, (tuple(of_cell[cell] for cell in range(size)),))


def _sort_intervals(starts: Tensor, stops: Tensor) -> dict[Interval, int] | None:
    """Number the different intervals in their order; None if they have none."""
    different = sorted(set(zip(starts.tolist(), stops.tolist(), strict=True)))
    for (_, before), (_, after) in itertools.pairwise(different):
        if before > after:
            return None
    return {interval: number for number, interval in enumerate(different)}


def separate_intervals(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Give each index to one interval: where they overlap, to that whose middle is nearest."""
    cells = [list(interval) for interval in intervals]
    for left, right, (start, stop), (next_start, next_stop) in zip(
        cells, cells[1:], intervals, intervals[1:], strict=False
    ):
        if next_start < stop:
            middle = -(-(start + stop + next_start + next_stop - 2) // 4)
            left[1] = right[0] = min(max(middle, next_start), stop)
    return tuple((start, max(start, stop)) for start, stop in cells)
