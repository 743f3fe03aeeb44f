"""Lattices with holes: several images or crops of a sample, of which some may be smaller."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from whence.layout.fields import TokenFields
from whence.layout.lattice import Interval, Lattice, find_lattice, separate_intervals

# An input with so many dimensions after the batch is several images, or one on a canvas.
_SEVERAL = 4


def find_units(fields: TokenFields) -> Lattice | None:
    """Find the grid that the fields of tokens form on the input; None if they form none.

    Several images of a sample lie in one grid, also where some samples have fewer or smaller ones.
    """
    lattice = find_lattice(fields)
    if lattice is None or (len(fields.shape) >= _SEVERAL and not _covers_input(fields)):
        return find_image_lattice(fields) or lattice
    return lattice


def find_image_lattice(fields: TokenFields) -> Lattice | None:
    """Find the grid that the fields of tokens form on images, with holes; None if they form none.

    Each field has one interval along each axis, and of any two different intervals one both starts
    and stops before the other. At most one token of a sample stands for a cell. Where intervals are
    the tiles of an axis, the axis has all of its tiles.
    """
    if len(fields.shape) < 3 or not fields.are_boxes:
        return None
    samples, tokens = fields.counts.nonzero(as_tuple=True)
    if not len(tokens):
        return None
    intervals, starts = [], []
    for dim, length in enumerate(fields.shape):
        bounds = torch.stack([of[samples, tokens, dim] for of in (fields.starts, fields.stops)], 1)
        different = torch.unique(bounds, dim=0)
        if bool((different.diff(dim=0) <= 0).any()):
            return None
        found = [(start, stop) for start, stop in different.tolist()]
        several = len(fields.shape) >= _SEVERAL
        intervals.append(_complete_tiles(found, length) if several else found)
        starts.append(bounds[:, 0].contiguous())
    last = len(intervals) - 2  # rows and columns are axes, if of one cell
    axes = tuple(dim for dim, one in enumerate(intervals) if len(one) > 1 or dim >= last)
    cell = torch.zeros_like(tokens)
    for axis in axes:
        known = torch.tensor([start for start, _ in intervals[axis]])
        cell = cell * len(known) + torch.searchsorted(known, starts[axis])
    size, batch = math.prod(len(intervals[axis]) for axis in axes), len(fields.counts)
    units = torch.full((batch, size), -1)
    units[samples, cell] = tokens
    if int((units >= 0).sum()) != len(tokens):
        return None
    rows = [tuple(row) for row in units.tolist()]
    cells = tuple(separate_intervals(intervals[axis]) for axis in axes)
    return Lattice(axes, cells, tuple(rows[:1] if len(set(rows)) == 1 else rows))


def _covers_input(fields: TokenFields) -> bool:
    """Whether tokens stand for something at the end of every dimension."""
    stops = fields.stops[fields.counts > 0]
    return len(stops) == 0 or tuple(stops.amax(0).tolist()) == fields.shape


def _complete_tiles(intervals: Sequence[Interval], length: int) -> list[Interval]:
    """All tiles of an axis, if the intervals are some of them; else the intervals."""
    step = intervals[0][1] - intervals[0][0]
    tiles = [(start, start + step) for start in range(0, length, step)]
    return tiles if length % step == 0 and set(intervals) <= set(tiles) else list(intervals)
