"""Scores as images of any size, and in the order in which one sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from whence.errors import WhenceError

if TYPE_CHECKING:
    from whence.explanation.explanation import Explanation

_Float = TypeVar("_Float", bound=np.floating[Any])

_SIZES = {
    1: "A size of a signal is its length, at least 1",
    2: "A size is a height and a width of at least 1",
    3: "A size of a video is a height and a width, or frames, height and width, of at least 1",
}


def upsample_scores(explanation: Explanation, size: int | tuple[int, ...] | None = None) -> Tensor:
    """Upsample scores linearly from the grid of units, as `Explanation.heatmap` does.

    Raises:
        WhenceError: The explanation is of tokens, or the size is none.
    """
    grid, scores = explanation.grid, explanation.scores
    if grid is None:
        raise WhenceError(
            "This explanation is of tokens, which have no heatmap; see .words(). If they are "
            "patches and whence could not prove so, say so: Explainer(model, "
            "layout=Layout(grid=(rows, columns), prefix=1))."
        )
    sides = _choose_size(explanation, grid, size)
    planar = min(len(grid), 2)
    maps = scores.reshape(-1, math.prod(grid[:-planar]), *grid[-planar:])
    mode = "linear" if planar == 1 else "bilinear"
    maps = F.interpolate(maps, size=sides[-planar:], mode=mode, align_corners=False)
    if len(sides) == 3:  # each frame of the video has the map of the unit that it belongs to
        maps = maps[:, [frame * grid[0] // sides[0] for frame in range(sides[0])]]
        return maps.reshape(*scores.shape[:-1], *sides)
    return maps.reshape(*scores.shape[:-1], *grid[:-planar], *sides)


def find_picture_grid(
    grid: tuple[int, ...] | None, axes: tuple[str, ...]
) -> tuple[int, int] | None:
    """Rows and columns of a grid as a picture, frames below each other; None for fewer axes.

    Of a spectrogram these are frequencies and times.
    """
    if grid is None or len(grid) < 2:
        return None
    if axes == ("time", "frequency"):
        return grid[1], grid[0]
    return math.prod(grid[:-1]), grid[-1]


def arrange_picture(
    scores: NDArray[_Float], grid: tuple[int, ...], axes: tuple[str, ...]
) -> NDArray[_Float]:
    """Arrange the scores of units as a picture: (rows, columns), with frames before them.

    Time goes to the right, and low frequencies are at the bottom; a signal is one row.
    """
    maps = scores.reshape((1, *grid)[-max(2, len(grid)) :])
    if axes == ("time", "frequency"):
        maps = maps.T
    return maps[::-1] if "frequency" in axes else maps


def _choose_size(
    explanation: Explanation, grid: tuple[int, ...], size: int | tuple[int, ...] | None
) -> tuple[int, ...]:
    """The lengths of a heatmap: those asked for, or else those of what the model saw."""
    if size is None:
        return (
            (explanation.length or grid[0],)
            if len(grid) == 1
            else (explanation.image_size or grid[-2:])
        )
    sides = (size,) if isinstance(size, SupportsIndex) else size
    counts = {1: (1,), 2: (2,), 3: (2, 3)}[len(grid)]
    if not isinstance(sides, Sequence) or len(sides) not in counts or not _are_lengths(sides):
        raise WhenceError(f"{_SIZES[len(grid)]}, not {size!r}.")
    return tuple(map(index, sides))


def _are_lengths(sides: Sequence[object]) -> bool:
    return all(isinstance(side, SupportsIndex) and index(side) > 0 for side in sides)
