"""Divide an input into equal parts along some of its dimensions."""

from __future__ import annotations

import math

from torch import Tensor

from whence.errors import WhenceError
from whence.layout.lattice import Cells

# An image is divided into squares of so many pixels or fewer, and has at least so many rows and
# columns of them, and of smaller ones at most so many; or else it has so many rows and columns. A
# signal has at most so many segments, and a video at most so many times.
_SQUARE, _FEWEST, _MOST, _OTHERWISE, _MOST_SEGMENTS, _MOST_FRAMES = 16, 8, 32, 14, 100, 32


def choose_grid(main: Tensor, stated: tuple[int, ...] | None) -> tuple[int, ...]:
    """Choose how many parts an input has along each dimension that it is divided along.

    Args:
        main: The input, (batch, ...).
        stated: The grid that the user stated; chosen if None.

    Raises:
        WhenceError: The input has not so many dimensions, or not so many elements along one.
    """
    if stated is not None:
        if not 0 < len(stated) < main.dim() or not _fits(stated, _get_lengths(main, len(stated))):
            raise WhenceError(
                f"The layout does not fit: an input of size {'x'.join(map(str, main.shape[1:]))} "
                f"cannot be divided into a grid of {'x'.join(map(str, stated))}."
            )
        return stated
    if main.dim() <= 3:
        return (min(_get_lengths(main, 1)[0], _MOST_SEGMENTS),)
    lengths = _get_lengths(main, 2)
    if main.dim() == 5:
        return (min(_get_lengths(main, 3)[0], _MOST_FRAMES), *_choose_squares(lengths))
    return _choose_squares(lengths)


def _choose_squares(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Choose rows and columns of an image."""
    common = math.gcd(*lengths)
    for side in range(_SQUARE, 0, -1):
        is_few = side == _SQUARE or max(lengths) <= side * _MOST
        if common % side == 0 and min(lengths) >= side * _FEWEST and is_few:
            return tuple(length // side for length in lengths)
    return tuple(min(length, _OTHERWISE) for length in lengths)


def find_axes(main: Tensor, count: int) -> tuple[int, ...]:
    """Find the dimensions, after the batch, that a grid of so many axes lies along."""
    dims = main.dim() - 1
    if count == 3 and dims == 4:  # frames come before channels or after: these are few
        return (0 if main.shape[2] <= main.shape[1] else 1, 2, 3)
    if count == 1 and dims == 2:  # rows of (time, width)
        return (0,)
    return tuple(range(dims - count, dims))


def divide_axes(main: Tensor, axes: tuple[int, ...], grid: tuple[int, ...]) -> Cells:
    """Divide dimensions of an input: for each, the indices of every part."""
    pairs = zip(axes, grid, strict=True)
    return tuple(divide_length(main.shape[1 + axis], count) for axis, count in pairs)


def divide_length(length: int, count: int) -> tuple[tuple[int, int], ...]:
    """Divide a length into equal parts: the first index of each, and one past the last."""
    return tuple((n * length // count, (n + 1) * length // count) for n in range(count))


def _get_lengths(main: Tensor, count: int) -> tuple[int, ...]:
    return tuple(main.shape[1 + axis] for axis in find_axes(main, count))


def _fits(grid: tuple[int, ...], lengths: tuple[int, ...]) -> bool:
    return all(1 <= count <= length for count, length in zip(grid, lengths, strict=True))
