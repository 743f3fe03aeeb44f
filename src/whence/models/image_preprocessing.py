"""Photos to normalised pixels and back, and the part of a photo that the model saw."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from whence.errors import WhenceError
from whence.models.loaded import LoadedModel, PreparedBatch

Box = tuple[float, float, float, float]

# A picture of the result is a few hundred pixels wide; a larger photo would not be drawn better.
_MAX_CONTENT_SIDE = 1024
_MIN_SEEN_SHARE = 0.75
_MAX_PROPORTION = 16
# Mean difference, of 255: more than between ways to interpolate, less than for a shifted crop.
_MAX_DIFFERENCE = 6.0


@dataclass(frozen=True)
class PixelScale:
    """The normalisation of pixels from values between 0 and 1: (value * factor - mean) / std.

    `factor` is 1, or 255 for models that take bytes; `mean` and `std` are those of each channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    factor: float = 1.0

    @classmethod
    def from_processor(cls, processor: object) -> PixelScale:
        """Read the scale from an image processor of transformers."""
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        if getattr(processor, "do_normalize", False):
            mean, std = (tuple(getattr(processor, f"image_{name}")) for name in ("mean", "std"))
        rescaled = getattr(processor, "do_rescale", True)
        factor = 255 * getattr(processor, "rescale_factor", 1 / 255) if rescaled else 255.0
        return cls(mean, std, factor)

    @classmethod
    def from_model(cls, loaded: LoadedModel) -> PixelScale:
        """Read the scale from a model's preprocessor."""
        if isinstance(loaded.preprocessor, CenterCropPreprocessor):
            return loaded.preprocessor.scale
        return cls.from_processor(find_processor(loaded))

    def to_unit(self, pixels: Tensor) -> Tensor:
        """Convert the model's pixels, (..., 3, height, width), to values from 0 to 1."""
        mean, std = self._channels(pixels)
        return ((pixels * std + mean) / self.factor).clamp(0, 1)

    def to_model(self, values: Tensor) -> Tensor:
        """Convert values from 0 to 1, (..., 3, height, width), to the model's pixels."""
        mean, std = self._channels(values)
        return (values * self.factor - mean) / std

    def _channels(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (like.new_tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        return mean, std


@dataclass(frozen=True)
class CenterCropPreprocessor:
    """Resize photos, crop their middle and normalise: the usual way of image classifiers.

    Attributes:
        size: Height and width that the model takes.
        resize: The size before the crop: of the photo's shorter side, or its height and width,
            which may change its proportions.
        mean: Mean of each channel, of values from 0 to 1; `std`, their standard deviation.
        resample: How to interpolate.
    """

    size: tuple[int, int]
    resize: int | tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: Image.Resampling = Image.Resampling.BICUBIC

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> CenterCropPreprocessor:
        """Read the preprocessing from timm's data configuration."""
        _, height, width = config["input_size"]
        resized = tuple(math.floor(side / config["crop_pct"]) for side in (height, width))
        # timm keeps proportions only where the model's input is square.
        keeps = config["crop_mode"] == "center" and height == width
        return cls(
            (height, width),
            resized[0] if keeps else (resized[0], resized[1]),
            tuple(config["mean"]),
            tuple(config["std"]),
            Image.Resampling[config["interpolation"].upper()],
        )

    @property
    def scale(self) -> PixelScale:
        """The normalisation of pixels."""
        return PixelScale(self.mean, self.std)

    def __call__(self, images: Sequence[Image.Image]) -> PreparedBatch:
        """Prepare a batch of photos."""
        boxes = [find_crop_box(image.size, self.resize, self.size) for image in images]
        contents = [cut_box(image, box) for image, box in zip(images, boxes, strict=True)]
        return _stack_photos([self._to_pixels(image) for image in images], images, boxes, contents)

    def _to_pixels(self, image: Image.Image) -> Tensor:
        if isinstance(self.resize, int):
            image = narrow_to_middle(image)
        width, height = compute_resized_size(image.size, self.resize)
        rows, columns = self.size
        left, top = round((width - columns) / 2), round((height - rows) / 2)
        image = image.resize((width, height), self.resample)
        image = image.crop((left, top, left + columns, top + rows))
        return self.scale.to_model(torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255)


class ProcessorPreprocessor:
    """Prepare photos with an image processor of transformers."""

    def __init__(self, processor: Callable[..., Mapping[str, Tensor]]) -> None:
        self.processor = processor

    def __call__(self, images: Sequence[Image.Image]) -> PreparedBatch:
        """Prepare a batch of photos, one by one: some processors keep their proportions."""
        crops = getattr(self.processor, "do_center_crop", False)
        given = [narrow_to_middle(image) if crops else image for image in images]
        pixels = [self.processor([one], return_tensors="pt")["pixel_values"][0] for one in given]
        boxes = [find_processor_box(image.size, self.processor) for image in images]
        contents = [
            find_content(image, one, box, PixelScale.from_processor(self.processor))
            for image, one, box in zip(images, pixels, boxes, strict=True)
        ]
        return _stack_photos(pixels, images, boxes, contents)


def find_processor(loaded: LoadedModel) -> Any:
    """Return the image processor of transformers that prepares a model's photos."""
    processor = getattr(loaded.preprocessor, "processor", None)
    if processor is None:
        raise WhenceError(
            f"whence does not know how '{loaded.name}' prepares photos: its preprocessor is "
            f"neither a CenterCropPreprocessor nor an image processor of transformers."
        )
    return processor


def _stack_photos(
    pixels: Sequence[Tensor],
    images: Sequence[Image.Image],
    boxes: Sequence[Box],
    contents: list[Image.Image],
) -> PreparedBatch:
    """Stack the pixels of photos to a batch, with a note for each that was cropped much."""
    if len({tuple(one.shape) for one in pixels}) > 1:
        raise WhenceError(
            "The photos have different sizes even when prepared for the model; explain them one by "
            "one."
        )
    notes = [_note_crop(image.size, box) for image, box in zip(images, boxes, strict=True)]
    return PreparedBatch(torch.stack(list(pixels)), contents, notes)


def compute_resized_size(size: tuple[int, int], resize: int | tuple[int, int]) -> tuple[int, int]:
    """Compute a photo's width and height after resizing (its shorter side, or height and width)."""
    if not isinstance(resize, int):
        return resize[1], resize[0]
    short = min(size)
    width, height = (resize if side == short else int(resize * side / short) for side in size)
    return width, height


def find_crop_box(
    size: tuple[int, int], resize: int | tuple[int, int], crop: tuple[int, int]
) -> Box:
    """Find the part of a photo that resizing and cropping keep: left, top, right, bottom."""
    resized = compute_resized_size(size, resize)
    kept = [min(c, r) for c, r in zip(reversed(crop), resized, strict=True)]
    scale = [side / r for side, r in zip(size, resized, strict=True)]
    # Croppers round the margin down, in pixels of the resized photo.
    left, top = ((r - k) // 2 * s for r, k, s in zip(resized, kept, scale, strict=True))
    return left, top, left + kept[0] * scale[0], top + kept[1] * scale[1]


def find_processor_box(size: tuple[int, int], processor: object) -> Box:
    """Find the part of a photo that a processor of transformers should keep."""
    resize, crop = (_read_lengths(getattr(processor, name, None)) for name in ("size", "crop_size"))
    if resize is None or crop is None or not getattr(processor, "do_center_crop", False):
        return (0, 0, *size)
    return find_crop_box(size, resize, (crop, crop) if isinstance(crop, int) else crop)


def narrow_to_middle(image: Image.Image) -> Image.Image:
    """Crop a photo of extreme proportions to its middle, enough for a crop of the middle.

    Resizing by the shorter side would make a strip of 4096 x 3 pixels a third of a million wide.
    """
    short = min(image.size)
    width, height = (min(side, short * _MAX_PROPORTION) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def cut_box(image: Image.Image, box: Box) -> Image.Image:
    """Cut a part of a photo, in its own proportions and at most about a thousand pixels wide."""
    scale = min(1.0, _MAX_CONTENT_SIDE / max(box[2] - box[0], box[3] - box[1]))
    size = [max(1, round((box[i + 2] - box[i]) * scale)) for i in (0, 1)]
    return image.resize((size[0], size[1]), Image.Resampling.BICUBIC, box)


def _note_crop(size: tuple[int, int], box: Box) -> list[str]:
    """Note the share of the photo that the model saw, if it is small."""
    share = (box[2] - box[0]) * (box[3] - box[1]) / (size[0] * size[1])
    cropped = share < _MIN_SEEN_SHARE
    return [f"the model saw only the middle {share:.0%} of the photo"] if cropped else []


def find_content(
    image: Image.Image, pixels: Tensor, expected: Box, scale: PixelScale
) -> Image.Image:
    """Find the part of a photo that a processor of transformers kept.

    Processors do not report how they cropped. So the usual ways are tried, and the first that looks
    like the pixels is taken; if none does, the pixels themselves are returned.
    """
    values = scale.to_unit(pixels.double()) * 255
    seen = values.permute(1, 2, 0).float().numpy()
    size = (seen.shape[1], seen.shape[0])
    for box in (expected, (0, 0, *image.size)):
        tried = np.asarray(image.resize(size, Image.Resampling.BILINEAR, box), dtype=np.float32)
        if np.abs(tried - seen).mean() < _MAX_DIFFERENCE:
            return cut_box(image, box)
    return Image.fromarray(seen.round().astype(np.uint8))


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
