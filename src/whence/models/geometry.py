"""Photos into pixels for models that bring no processor, and the part of a photo that was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from whence.models.loaded import Prepared, stacked

Box = tuple[float, float, float, float]

# A picture of the result is a few hundred pixels wide; what is kept of a photo need not be more.
_SHOWN_SIDE = 1024
_NEARLY_ALL = 0.75
_LONGEST_PROPORTION = 16


@dataclass(frozen=True)
class Geometry:
    """Resize, crop the middle, normalise: what nearly every image classifier wants.

    Attributes:
        size: Height and width that the model takes.
        resize: To what the photo is resized before the middle is cut out: its shorter side, or
            height and width, which may change its proportions.
        mean: Mean of each channel, of values from 0 to 1.
        std: Their standard deviation.
        resample: How to interpolate.
    """

    size: tuple[int, int]
    resize: int | tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: Image.Resampling = Image.Resampling.BICUBIC

    def __call__(self, images: Sequence[Image.Image]) -> Prepared:
        """Prepare a batch of photos."""
        boxes = [seen_box(image.size, self.resize, self.size) for image in images]
        pixels = [self._pixels(image) for image in images]
        seen = list(zip(images, boxes, strict=True))
        notes = [crop_notes(image.size, box) for image, box in seen]
        return stacked(pixels, [cut(image, box) for image, box in seen], notes)

    def _pixels(self, image: Image.Image) -> Tensor:
        if isinstance(self.resize, int):
            image = narrowed(image)
        width, height = resized_size(image.size, self.resize)
        rows, columns = self.size
        left, top = round((width - columns) / 2), round((height - rows) / 2)
        image = image.resize((width, height), self.resample)
        image = image.crop((left, top, left + columns, top + rows))
        values = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        return (values - mean) / std


def resized_size(size: tuple[int, int], resize: int | tuple[int, int]) -> tuple[int, int]:
    """Width and height of a photo after resizing (its shorter side, or height and width)."""
    if not isinstance(resize, int):
        return resize[1], resize[0]
    short = min(size)
    width, height = (resize if side == short else int(resize * side / short) for side in size)
    return width, height


def seen_box(size: tuple[int, int], resize: int | tuple[int, int], crop: tuple[int, int]) -> Box:
    """The part of a photo that is left after resizing and cropping: left, top, right, bottom."""
    resized = resized_size(size, resize)
    kept = [min(c, r) for c, r in zip(reversed(crop), resized, strict=True)]
    scale = [side / r for side, r in zip(size, resized, strict=True)]
    # Croppers round the margin down, in pixels of the resized photo.
    left, top = ((r - k) // 2 * s for r, k, s in zip(resized, kept, scale, strict=True))
    return left, top, left + kept[0] * scale[0], top + kept[1] * scale[1]


def narrowed(image: Image.Image) -> Image.Image:
    """The middle of a photo of extreme proportions, enough for a crop of the middle.

    Resizing by the shorter side would make a strip of 4096 x 3 pixels a third of a million wide.
    """
    short = min(image.size)
    width, height = (min(side, short * _LONGEST_PROPORTION) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def cut(image: Image.Image, box: Box) -> Image.Image:
    """A part of a photo, in its own proportions and at most about a thousand pixels wide."""
    scale = min(1.0, _SHOWN_SIDE / max(box[2] - box[0], box[3] - box[1]))
    size = [max(1, round((box[i + 2] - box[i]) * scale)) for i in (0, 1)]
    return image.resize((size[0], size[1]), Image.Resampling.BICUBIC, box)


def processors_box(size: tuple[int, int], processor: Any) -> Box:
    """The part of a photo that a processor of transformers should let through."""
    resize, crop = (_lengths(getattr(processor, name, None)) for name in ("size", "crop_size"))
    if resize is None or crop is None or not getattr(processor, "do_center_crop", False):
        return (0, 0, *size)
    return seen_box(size, resize, (crop, crop) if isinstance(crop, int) else crop)


def crop_notes(size: tuple[int, int], box: Box) -> list[str]:
    """A word on what the model did not see, if that is much."""
    share = (box[2] - box[0]) * (box[3] - box[1]) / (size[0] * size[1])
    cropped = share < _NEARLY_ALL
    return [f"the model saw only the middle {share:.0%} of the photo"] if cropped else []


def seen_image(image: Image.Image, pixels: Tensor, processor: Any) -> Image.Image:
    """The part of a photo that a processor of transformers let through.

    Processors do not tell how they cropped. So the usual ways are tried, and the one that looks
    like the pixels is believed; if none does, the pixels themselves are shown.
    """
    seen = _denormalized(pixels, processor)
    size = (seen.shape[1], seen.shape[0])
    for box in (processors_box(image.size, processor), (0, 0, *image.size)):
        alike = np.asarray(image.resize(size, Image.Resampling.BILINEAR, box), dtype=np.float32)
        if np.abs(alike - seen).mean() < _ALIKE:
            return cut(image, box)
    return Image.fromarray(seen.round().astype(np.uint8))


_ALIKE = 6.0  # mean difference, of 255: more than between ways to interpolate, less than a shift


def _denormalized(pixels: Tensor, processor: Any) -> np.ndarray[Any, Any]:
    """Pixels as the model takes them, as (height, width, 3) values from 0 to 255."""
    values = pixels.permute(1, 2, 0).double().numpy()
    if getattr(processor, "do_normalize", False):
        values = values * np.array(processor.image_std) + np.array(processor.image_mean)
    if getattr(processor, "do_rescale", True):
        values = values / getattr(processor, "rescale_factor", 1 / 255)
    return values.clip(0, 255).astype(np.float32)


def _lengths(size: Any) -> int | tuple[int, int] | None:
    """A processor's size: the shorter side, or height and width; None for what is neither."""
    if isinstance(size, int):
        return size
    names = ("shortest_edge", "height", "width")
    get = size.get if hasattr(size, "get") else lambda name: getattr(size, name, None)
    short, height, width = (int(get(name) or 0) for name in names)
    if short:
        return short
    return (height, width) if height and width else None


def timm_geometry(config: dict[str, Any]) -> Geometry:
    """The geometry that timm's data configuration describes."""
    _, height, width = config["input_size"]
    scaled = tuple(math.floor(side / config["crop_pct"]) for side in (height, width))
    # timm keeps proportions only where the model's input is square.
    keeps = config["crop_mode"] == "center" and height == width
    return Geometry(
        (height, width),
        scaled[0] if keeps else (scaled[0], scaled[1]),
        tuple(config["mean"]),
        tuple(config["std"]),
        Image.Resampling[config["interpolation"].upper()],
    )
