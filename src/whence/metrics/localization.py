"""How much of what speaks for a class lies on its object, or in a cell of a mosaic.

Pixels marked 255 in a mask are never counted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.metrics.segmentation import IGNORED, energy_inside


def localize(maps: Tensor, masks: Tensor) -> dict[str, Tensor]:
    r"""Compute the share of the positive scores that lies inside a mask, and relative to its area.

    The share :math:`\mu = \sum_{p \in M} \max(s_p, 0) / \sum_p \max(s_p, 0)` is attribution
    localisation, of a box the energy-based pointing game. The weighted one is :math:`\mu` divided
    by the share of pixels that are inside (Kohlbrenner et al., IJCNN 2020): 1 for a map that is the
    same everywhere, whatever the size of the object.

    Args:
        maps: (n, height, width).
        masks: (n, height, width): 1 inside, 0 outside, 255 ignored.

    Returns:
        ``share`` and ``weighted``, each (n,) in float64. Both are 0 for a map with nothing above 0,
        and for a mask without an object: see `whence.metrics.segmentation.has_object`.
    """
    share, area = energy_inside(maps, masks), compute_area(masks)
    return {"share": share, "weighted": share / torch.where(area > 0, area, 1)}


def compute_area(masks: Tensor) -> Tensor:
    """Compute the share of the counted pixels that are inside: (n,), 0 where none is counted."""
    counted = (masks != IGNORED).flatten(1).sum(1)
    return (masks == 1).flatten(1).sum(1).double() / counted.clamp(min=1)


def enclose_objects(masks: Tensor) -> Tensor:
    """Draw the smallest box around all of a mask's object, as a mask; ignored pixels stay so."""
    inside = masks == 1
    rows, columns = _fill_between(inside.any(2)), _fill_between(inside.any(1))
    boxes = (rows[:, :, None] & columns[:, None, :]).to(masks.dtype)
    return torch.where(masks == IGNORED, masks, boxes)


def draw_cells(
    cells: Tensor, grid: tuple[int, int], size: tuple[int, int], device: torch.device | str = "cpu"
) -> Tensor:
    """Draw one cell of a grid for each sample, as masks (n, height, width).

    Args:
        cells: (n,), numbers of cells in reading order.
        grid: Rows and columns.
        size: Height and width in pixels, which `split_evenly` divides.
        device: Of the result.
    """
    numbers = []
    for parts, pixels in zip(grid, size, strict=True):
        edges = torch.tensor(split_evenly(pixels, parts)[1:])
        numbers.append(torch.bucketize(torch.arange(pixels), edges, right=True))
    of_pixels = (numbers[0][:, None] * grid[1] + numbers[1]).to(device)
    return (of_pixels == cells.to(device)[:, None, None]).to(torch.uint8)


def split_evenly(pixels: int, parts: int) -> list[int]:
    """Split a side into parts that differ by one pixel at most: the edges, from 0 to `pixels`."""
    return [at * pixels // parts for at in range(parts + 1)]


def _fill_between(marked: Tensor) -> Tensor:
    """(n, places), true from the first to the last of those that are true."""
    marked = marked.to(torch.uint8)
    started = marked.cummax(1).values
    not_ended = marked.flip(1).cummax(1).values.flip(1)
    return (started & not_ended).bool()
