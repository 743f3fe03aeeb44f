"""Scores as images of any size."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, SupportsIndex

from torch import Tensor
from torch.nn import functional as F

from whence.errors import WhenceError

if TYPE_CHECKING:
    from whence.explanation.explanation import Explanation


def upsample_scores(explanation: Explanation, size: tuple[int, int] | None = None) -> Tensor:
    """Upsample scores bilinearly from the grid of patches to height and width.

    Raises:
        WhenceError: The explanation is not of an image or a video, or the size is none.
    """
    grid, scores = explanation.grid, explanation.scores
    if grid is None:
        raise WhenceError(
            "This explanation is of tokens, which have no heatmap; see .words(). If they are "
            "patches and whence could not prove so, say so: Explainer(model, "
            "layout=Layout(grid=(rows, columns), prefix=1))."
        )
    if len(grid) < 2:
        raise WhenceError(
            f"This explanation is of {grid[0]} segments of a signal, which have no heatmap; see "
            f".scores."
        )
    rows, columns = grid[-2:]
    maps = scores.reshape(-1, scores.shape[-1] // (rows * columns), rows, columns)
    size = size or explanation.image_size or (rows, columns)
    if not _is_size(size):
        raise WhenceError(f"A size is a height and a width of at least 1, not {size!r}.")
    maps = F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)
    return maps.reshape(*scores.shape[:-1], *grid[:-2], *maps.shape[-2:])


def _is_size(size: object) -> bool:
    """Whether this is a height and a width."""
    if not isinstance(size, Sequence) or len(size) != 2:
        return False
    return all(isinstance(side, SupportsIndex) and index(side) > 0 for side in size)
