"""The images of a sample, where it has several, or where images have several sizes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image

from whence.errors import WhenceError
from whence.explanation.classes import check_sample
from whence.explanation.media import Video
from whence.explanation.photo import Photo

if TYPE_CHECKING:
    from whence.explanation.explanation import Explanation

One = TypeVar("One", bound="Explanation")

IMAGES = ("image", "row", "column")
"""The axes of several images."""


def select_images(explanation: One, sample: int) -> dict[str, One]:
    """The images of one sample by their names: each an explanation of one image.

    Raises:
        WhenceError: The explanation is not of images, or there is no such sample.
    """
    check_sample(explanation, sample)
    grid, whole = explanation.grid, explanation.image_size
    several = explanation.axes == IMAGES
    if grid is None or whole is None or len(grid) != (3 if several else 2):
        raise WhenceError("This explanation is not of images; see .scores and .words().")
    one = explanation[sample]
    rows, columns = grid[-2:]
    maps = one.scores.reshape(*one.scores.shape[:-1], -1, rows, columns)
    sizes = None if explanation.image_sizes is None else explanation.image_sizes[sample]
    sizes = [whole] * maps.shape[-3] if sizes is None else sizes
    found = {}
    for number, (height, width) in enumerate(sizes):
        shown = -(-rows * height // whole[0]), -(-columns * width // whole[1])
        scores = maps[..., number, : shown[0], : shown[1]]
        changes: dict[str, Any] = {"grid": shown, "image_size": (height, width)}
        changes |= {"axes": IMAGES[1:], "image_sizes": None, "media": None}
        if several or sizes != [whole]:
            changes["photos"] = _find_photos(one, number, (height, width), whole)
        name = f"image {number + 1}"
        found[name] = dataclasses.replace(one, scores=scores.flatten(-2), **changes)
    return found


def _find_photos(
    explanation: Explanation, number: int, size: tuple[int, int], whole: tuple[int, int]
) -> list[Photo] | None:
    """What the model saw of one image, if that is known."""
    held = explanation.media
    if not held or not isinstance(held[0], Video):
        return None
    frame = held[0].frames[number]
    height, width = (
        max(1, round(length * side / of))
        for length, side, of in zip(frame.shape, size, whole, strict=False)
    )
    return [Photo.from_crop(Image.fromarray(np.ascontiguousarray(frame[:height, :width])))]
