"""The part of a photo that resizing and cropping leave to the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from whence.explanation.photo import Box

_MAX_PROPORTION = 16
# The colour of every pixel of a probe in the channel that tells where the processor padded.
_LEVEL = 128
# With so many sizes that agree with a processor's settings, those between them do.
_MANY_SIZES = 12
# Shorter sides make a probe of so few steps that nothing can be read from it.
_MIN_PROBE_SIDE = 4


def compute_resized_size(size: tuple[int, int], resize: int | tuple[int, int]) -> tuple[int, int]:
    """Compute a photo's width and height after resizing (its shorter side, or height and width)."""
    if not isinstance(resize, int):
        return resize[1], resize[0]
    short = min(size)
    width, height = (resize if side == short else int(resize * side / short) for side in size)
    return width, height


def find_crop_box(
    size: tuple[int, int],
    resize: int | tuple[int, int],
    crop: tuple[int, int],
    round_margin: Callable[[float], int] = math.floor,
) -> Box:
    """Find the part of a photo that resizing and cropping the middle keep.

    Args:
        size: Width and height of the photo.
        resize: The size before the crop: of the shorter side, or height and width.
        crop: Height and width of the crop.
        round_margin: How the cropper rounds half of what it cuts off: down, as transformers does,
            or `round`, as torchvision and timm do.

    Returns:
        Left, top, right and bottom, in pixels of the photo.
    """
    resized = compute_resized_size(size, resize)
    kept = [min(c, r) for c, r in zip(reversed(crop), resized, strict=True)]
    scale = [side / r for side, r in zip(size, resized, strict=True)]
    left, top = (
        round_margin((r - k) / 2) * s for r, k, s in zip(resized, kept, scale, strict=True)
    )
    return left, top, left + kept[0] * scale[0], top + kept[1] * scale[1]


class ProvenSizes:
    """Sizes of photos of which a processor kept what its settings say, as probes showed.

    Once there are enough and none was otherwise, the settings are believed for sizes between them:
    of a width, a height and proportions that lie between those that were probed.
    """

    def __init__(self) -> None:
        self._count = 0
        self._all_agree = True
        # Width, height and proportions, each of any photo.
        self._least = (math.inf, math.inf, math.inf)
        self._most = (0.0, 0.0, 0.0)

    def note(self, size: tuple[int, int], agrees: bool) -> None:
        """Note what the probe of a size showed: whether it agrees with the settings."""
        self._all_agree &= agrees
        if min(size) < _MIN_PROBE_SIDE:
            return  # too few pixels to show anything
        self._count += 1
        found = _measure_size(size)
        width, height, proportions = (min(pair) for pair in zip(found, self._least, strict=True))
        self._least = (width, height, proportions)
        width, height, proportions = (max(pair) for pair in zip(found, self._most, strict=True))
        self._most = (width, height, proportions)

    def is_between(self, size: tuple[int, int]) -> bool:
        """Whether the settings are believed for a size."""
        bounds = zip(self._least, _measure_size(size), self._most, strict=True)
        is_known = self._all_agree and self._count >= _MANY_SIZES
        return is_known and all(least <= found <= most for least, found, most in bounds)


def _measure_size(size: tuple[int, int]) -> tuple[float, float, float]:
    """The width of a photo, its height, and its proportions."""
    return size[0], size[1], size[0] / size[1]


def find_processor_box(size: tuple[int, int], processor: object) -> Box:
    """Find the part of a photo that a processor of transformers should keep."""
    resize, crop = (_read_lengths(getattr(processor, name, None)) for name in ("size", "crop_size"))
    if resize is None or crop is None or not getattr(processor, "do_center_crop", False):
        return (0, 0, *size)
    return find_crop_box(size, resize, (crop, crop) if isinstance(crop, int) else crop)


def narrow_to_middle(image: Image.Image) -> Image.Image:
    """Crop a photo of extreme proportions to its middle, enough for a crop of the middle.

    Resizing by the shorter side would make a strip of 4096 x 3 pixels a third of a million wide.
    `find_middle` tells where that lies in the photo.
    """
    return image.crop(find_middle(image.size))


def find_middle(size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Find what `narrow_to_middle` leaves of a photo: left, top, right, bottom."""
    short = min(size)
    width, height = (min(side, short * _MAX_PROPORTION) for side in size)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return left, top, left + width, top + height


def move_box(box: Box, middle: tuple[int, int, int, int]) -> Box:
    """Move a box in the middle of a photo to where it lies in the whole photo."""
    return box[0] + middle[0], box[1] + middle[1], box[2] + middle[0], box[3] + middle[1]


def draw_probe(size: tuple[int, int]) -> Image.Image:
    """Draw a picture that tells how a processor crops photos of its size.

    Processors do not report it. The picture's red rises from left to right, its green from top to
    bottom, and its blue is the same everywhere: so each pixel that comes out tells where in the
    picture it was.
    """
    width, height = size
    probe = np.full((height, width, 3), _LEVEL, dtype=np.uint8)
    probe[..., 0] = np.round((np.arange(width) + 0.5) * 255 / width)
    probe[..., 1] = np.round((np.arange(height)[:, None] + 0.5) * 255 / height)
    return Image.fromarray(probe)


def read_probe(
    seen: NDArray[np.float64], size: tuple[int, int], expected: Box | None = None
) -> Box | None:
    """Read off a processed probe which part of photos the processor keeps.

    Args:
        seen: What became of it: (height, width, 3), values from 0 to 255.
        size: Width and height that the probe was drawn with.
        expected: The box that the processor's settings promise; all of the photo if left out. It is
            returned if the pixels agree with it, since what is read off is exact to a fraction of a
            pixel only.

    Returns:
        Left, top, right and bottom; None unless all pixels agree on it, as where the processor
        pads, turns or bends photos.
    """
    width, height = size
    left, top, right, bottom = expected or (0.0, 0.0, width, height)
    if seen.ndim != 3 or seen.shape[2] != 3:
        return None
    for red, blue in ((0, 2), (2, 0)):  # some models take blue first
        if np.abs(seen[..., blue] - _LEVEL).max() > 2:
            continue
        columns = _fit_ramp(seen[..., red], width, (left, right))
        rows = _fit_ramp(seen[..., 1].T, height, (top, bottom))
        if columns is not None and rows is not None:
            return columns[0], rows[0], columns[1], rows[1]
    return None


def _fit_ramp(
    seen: NDArray[np.float64], side: int, expected: tuple[float, float]
) -> tuple[float, float] | None:
    """Read off where the part begins and ends, from a ramp along the last axis."""
    if side < _MIN_PROBE_SIDE:
        return expected
    count = seen.shape[1]
    places = (np.arange(count) + 0.5) / count
    values = seen.mean(0) * side / 255
    inner = slice(count // 10, count - count // 10)
    slope, start = np.polyfit(places[inner], values[inner], 1)
    # Resizing repeats the pixels at the border: up to one is lost there.
    allowed = 1.0 + side / 100
    bent = np.abs(seen * side / 255 - (start + slope * places)).max()
    if slope <= 0 or bent > allowed:
        return None
    found = (float(start), float(start + slope))
    near = slope / count / 2 + side / 500
    for known in (expected, (0.0, float(side))):
        if max(abs(a - b) for a, b in zip(found, known, strict=True)) <= near:
            return known
    return max(0.0, found[0]), min(float(side), found[1])


def _read_lengths(size: object) -> int | tuple[int, int] | None:
    """Read a processor's size: the shorter side, or height and width; None for anything else."""
    if isinstance(size, int):
        return size
    names = ("shortest_edge", "height", "width")
    values = size if isinstance(size, Mapping) else {n: getattr(size, n, None) for n in names}
    short, height, width = (int(values.get(name) or 0) for name in names)
    if short:
        return short
    return (height, width) if height and width else None
