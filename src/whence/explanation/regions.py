"""Peak regions of a map: the parts of a photo that hold much of the evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from whence.errors import WhenceError
from whence.explanation.heatmaps import arrange_picture

# Half of the evidence on more patches than this share: the map is flat.
MOST_AREA = 0.4
# On fewer than this share it is concentrated as hardly any noise is, wherever the patches lie.
_FEW = 0.05
# Standard deviations by which patches must touch more often than at random.
_CLEARLY = 3.0
# A part is a peak region if it holds at least this share of all evidence, and if all that do hold
# so much together: the rest is scattered.
_LEAST_EVIDENCE, _LEAST_TOGETHER = 0.1, 0.25
_AROUND = tuple((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0))


@dataclass(frozen=True)
class PeakRegion:
    """A connected part of what the model saw of a photo, with its share of the evidence.

    Attributes:
        center: (x, y), the mean place of its evidence, as shares of the width and the height of
            the part that the model saw; `Photo.locate` gives the place in the whole photo.
        area: Its share of that part.
        evidence: Its share of all evidence of the same sign.
        mask: (rows, columns) of patches, True inside.
    """

    center: tuple[float, float]
    area: float
    evidence: float
    mask: NDArray[np.bool_]


def list_regions(
    scores: NDArray[np.float64],
    grid: tuple[int, ...] | None,
    against: bool = False,
    axes: tuple[str, ...] = (),
) -> list[PeakRegion]:
    """List the peak regions of scores of units, as `Explanation.regions` does."""
    if grid is None or (len(grid) != 2 and "time" not in axes):
        raise WhenceError(
            "Regions are of photos and sounds, and this explanation is of none; see .words() for "
            "texts."
        )
    return find_regions(arrange_picture(-scores if against else scores, grid, axes))


def find_regions(scores: NDArray[np.float64]) -> list[PeakRegion]:
    """Find the peak regions of a map, (rows, columns); those with most evidence first.

    Evidence is the sum of positive scores. The highest scores that together hold half of it are
    taken, and patches of them that touch, by a side or a corner, form a part. A part that holds at
    least a tenth of all evidence is a peak region.

    Returns:
        The regions. None if the map is flat: half of the evidence needs more than 40 % of the
        patches. None if the patches lie as noise does: they do not touch each other more often
        than patches drawn at random do, by three standard deviations, unless they are at most 5 %.
        None if they are scattered: such parts hold less than a quarter of the evidence together.
    """
    positive = np.maximum(scores, 0)
    total = float(positive.sum())
    if not total > 0:
        return []
    highest = find_highest(positive, total / 2)
    area = highest.mean()
    if area > MOST_AREA or (area > _FEW and measure_touching(highest) <= _CLEARLY):
        return []
    shares, labels = positive / total, label_parts(highest)
    held = np.bincount(labels.ravel(), shares.ravel())
    large = [part for part in range(1, len(held)) if held[part] >= _LEAST_EVIDENCE]
    if held[large].sum() < _LEAST_TOGETHER:
        return []
    regions = [_measure(labels == part, shares) for part in large]
    return sorted(regions, key=lambda region: -region.evidence)


def find_highest(scores: NDArray[np.float64], held: float) -> NDArray[np.bool_]:
    """Mark the fewest scores, the highest, whose sum is at least `held`; equal ones together."""
    ordered = np.sort(scores, axis=None)[::-1]
    last = np.searchsorted(np.cumsum(ordered), held * (1 - 1e-12))
    highest: NDArray[np.bool_] = scores >= ordered[min(int(last), ordered.size - 1)]
    return highest


def label_parts(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Number the parts of a mask from 1: cells that touch by a side or a corner; 0 is outside."""
    # Cells by their number in a wider map, in which those at the borders have neighbours, too.
    wide = mask.shape[1] + 2
    rows, columns = np.nonzero(mask)
    cells: list[int] = (rows * wide + columns).tolist()
    around = [y * wide + x for y, x in _AROUND]
    rest, part, count = set(cells), dict[int, int](), 0
    for start in cells:
        if start not in rest:
            continue
        count += 1
        rest.remove(start)
        reached = [start]
        while reached:
            cell = reached.pop()
            part[cell] = count
            near = [cell + step for step in around if cell + step in rest]
            rest.difference_update(near)
            reached += near
    labels = np.zeros(mask.shape, dtype=np.int64)
    labels[rows, columns] = [part[cell] for cell in cells]
    return labels


def measure_touching(mask: NDArray[np.bool_]) -> float:
    """Measure how much oftener marked cells touch each other than cells drawn at random.

    Returns:
        Standard deviations between the number of touching pairs and its mean over all ways to mark
        as many cells (the join count statistic, Cliff and Ord 1981); 0 where all ways are alike.
    """
    cells, marked = mask.size, int(mask.sum())
    pairs, sharing = _count_pairs(*mask.shape)
    # The chance that 2, 3 and 4 given cells are all marked.
    chances = [1.0]
    for taken in range(4):
        chances.append(chances[-1] * max(marked - taken, 0) / max(cells - taken, 1))
    two, three, four = chances[2:]
    mean = pairs * two
    variance = mean + sharing * three + (pairs * (pairs - 1) - sharing) * four - mean**2
    if variance < 1e-9:
        return 0.0
    touching = float(_count_neighbours(mask.astype(float))[mask].sum()) / 2
    return float((touching - mean) / math.sqrt(variance))


@lru_cache(maxsize=64)
def _count_pairs(rows: int, columns: int) -> tuple[float, float]:
    """Count pairs of cells that touch, and ordered pairs of such pairs that share one cell."""
    neighbours = _count_neighbours(np.ones((rows, columns)))
    return float(neighbours.sum()) / 2, float((neighbours * (neighbours - 1)).sum())


def _count_neighbours(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum, for each cell, the values of the eight cells around it."""
    rows, columns = values.shape
    framed = np.zeros((rows + 2, columns + 2))
    framed[1:-1, 1:-1] = values
    shifted = [framed[1 + y : 1 + y + rows, 1 + x : 1 + x + columns] for y, x in _AROUND]
    return np.sum(shifted, axis=0)  # type: ignore[no-any-return]


def _measure(mask: NDArray[np.bool_], shares: NDArray[np.float64]) -> PeakRegion:
    evidence = np.where(mask, shares, 0)
    held = float(evidence.sum())
    rows, columns = mask.shape
    x = float(evidence.sum(axis=0) @ (np.arange(columns) + 0.5)) / held / columns
    y = float(evidence.sum(axis=1) @ (np.arange(rows) + 0.5)) / held / rows
    return PeakRegion((x, y), float(mask.mean()), held, mask)
