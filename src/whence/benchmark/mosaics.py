"""Arrange photos of different classes in mosaics."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.nn import functional as F

from whence.errors import WhenceError
from whence.metrics.localization import split_evenly

Grid = tuple[int, int]


def parse_grid(text: str) -> Grid:
    """Parse the rows and columns of mosaics: ``"3"`` and ``"3x3"``, or ``"1x2"``."""
    parts = str(text).lower().split("x")
    sides = [int(part) for part in parts if part.strip().isdecimal()]
    if len(sides) != len(parts) or len(sides) > 2 or min(sides) < 1 or sides == [1] * len(sides):
        raise WhenceError(
            f"The size of mosaics is rows x columns, such as 2x2, 3x3 or 1x2, not '{text}'."
        )
    return sides[0], sides[-1]


def arrange_mosaics(classes: Mapping[str, int], cells: int, seed: int) -> list[tuple[str, ...]]:
    """Arrange photos, given with their classes, in mosaics of so many different classes.

    No photo is used twice, and there are as many mosaics as there can be: each takes a photo of the
    classes that have most photos left. Order, ties and places are drawn by the seed, and do not
    depend on the order of `classes`.
    """
    generator = random.Random(f"mosaics {seed}")
    by_class: dict[int, list[str]] = defaultdict(list)
    for name in sorted(classes):
        by_class[classes[name]].append(name)
    for photos in by_class.values():
        generator.shuffle(photos)
    mosaics = []
    while len(by_class) >= cells:
        drawn = list(by_class)
        generator.shuffle(drawn)
        chosen = sorted(drawn, key=lambda one: -len(by_class[one]))[:cells]
        generator.shuffle(chosen)
        mosaics.append(tuple(by_class[one].pop() for one in chosen))
        by_class = {one: photos for one, photos in by_class.items() if photos}
    return mosaics


def assemble_mosaic(photos: Sequence[Tensor], grid: Grid, resize: bool = True) -> Tensor:
    """Assemble photos (3, height, width) to a mosaic, in reading order.

    The mosaic has the size of the first photo, and the others are scaled to cells of it; or all
    have the size of the first one, if they are not to be resized.
    """
    height, width = photos[0].shape[-2:]
    if not resize:
        height, width = height * grid[0], width * grid[1]
    mosaic = photos[0].new_empty(photos[0].shape[0], height, width)
    downs, acrosses = split_evenly(height, grid[0]), split_evenly(width, grid[1])
    for number, photo in enumerate(photos):
        row, column = divmod(number, grid[1])
        rows = slice(downs[row], downs[row + 1])
        columns = slice(acrosses[column], acrosses[column + 1])
        size = (rows.stop - rows.start, columns.stop - columns.start)
        mosaic[:, rows, columns] = _resize(photo, size)
    return mosaic


def _resize(photo: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale a photo, each pixel of a smaller one the mean of what it covers."""
    if tuple(photo.shape[-2:]) == size:
        return photo
    if min(size) < 1:
        raise WhenceError("The mosaic has more cells than the model's input has pixels.")
    return F.interpolate(photo[None], size, mode="bilinear", antialias=True)[0]
