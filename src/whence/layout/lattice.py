"""Lattices: proof that the fields of tokens form a grid on the input, in any order of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
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
    known = [one for one in samples if one is not None]
    kinds = {(one.axes, one.cells) for one in known}
    if len(known) < len(samples) or len(kinds) > 1:
        return None
    axes, cells = kinds.pop()
    return Lattice(axes, cells, tuple(one.units[0] for one in known))


def find_rows(fields: TokenFields) -> tuple[tuple[int, ...], ...] | None:
    """Find the token of each row of an input of rows alone, such as token ids, or choices of them.

    Returns:
        For each sample, or once for all, the token of each row; -1 if a row has none. None if
        tokens do not stand for single rows, and are not as many as these.
    """
    length, units = math.prod(fields.shape), []
    for sample, counts in enumerate(fields.counts):
        starts = _number_rows(fields.starts[sample], fields.shape)
        tokens = counts.nonzero()[:, 0].tolist()
        of_row = {starts[token]: token for token in tokens}
        if len(of_row) < len(tokens) or counts.max() > 1:
            return _find_mixed_rows(fields)
        units.append(tuple(of_row.get(row, -1) for row in range(length)))
    return tuple(units[:1] if len(set(units)) == 1 else units)


def _number_rows(places: Tensor, shape: Sequence[int]) -> list[int]:
    """Number places in an input as its elements are numbered, the last dimension first."""
    numbers = places.new_zeros(len(places))
    for axis, size in enumerate(shape):
        numbers = numbers * size + places[:, axis]
    found: list[int] = numbers.tolist()
    return found


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
    intervals, numbers = [], []
    for dim in range(len(fields.shape)):
        bounds = [of[sample, tokens, dim] for of in (fields.starts, fields.stops)]
        different, number = torch.unique(torch.stack(bounds, 1), dim=0, return_inverse=True)
        if bool((different[:-1, 1] > different[1:, 1]).any()):
            return None
        intervals.append([(start, stop) for start, stop in different.tolist()])
        numbers.append(number)
    # Images, frames and the like always lie along the last two dimensions, if in one cell.
    planar = len(intervals) - 2 if len(intervals) > 2 else len(intervals)
    axes = tuple(d for d, one in enumerate(intervals) if len(one) > 1 or d >= planar)
    axes = axes or (0,)
    cell = torch.zeros_like(tokens)
    for axis in axes:
        cell = cell * len(intervals[axis]) + numbers[axis]
    size = math.prod(len(intervals[axis]) for axis in axes)
    if len(tokens) != size or len(set(cell.tolist())) != size:
        return None
    cells = tuple(separate_intervals(intervals[axis]) for axis in axes)
    return Lattice(axes, cells, (tuple(tokens[cell.argsort()].tolist()),))


def separate_intervals(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Give each index to one interval: where they overlap, to that whose middle is nearest.

    Starts are in order, and so are stops.
    """
    cells = [list(interval) for interval in intervals]
    for left, right, (start, stop), (next_start, next_stop) in zip(
        cells, cells[1:], intervals, intervals[1:], strict=False
    ):
        if next_start < stop:
            middle = -(-(start + stop + next_start + next_stop - 2) // 4)
            left[1] = right[0] = sorted((next_start, middle, stop))[1]
    return tuple((start, stop) for start, stop in cells)
