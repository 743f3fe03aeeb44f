"""Photos to normalised pixels and back, and the part of a photo that the model saw."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.explanation.photo import Box, Photo
from whence.models.crop import (
    ProvenSizes,
    compute_resized_size,
    draw_probe,
    find_crop_box,
    find_middle,
    find_processor_box,
    move_box,
    narrow_to_middle,
    read_probe,
)
from whence.models.loaded import LoadedModel, PreparedBatch

_MIN_SEEN_SHARE = 0.75
_PROBE = (64, 64)
# Sizes of photos for which a processor's crop is kept: finding one takes as long as preparing two
# photos, and a dataset may have thousands of sizes.
_MAX_SIZES = 65536


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
        scale = getattr(loaded.preprocessor, "scale", None)
        if isinstance(scale, cls):
            return scale
        return cls.from_processor(find_processor(loaded))

    @classmethod
    def measure(cls, to_pixels: Callable[[Image.Image], Tensor]) -> PixelScale:
        """Read the scale off what becomes of a black picture and a white one.

        Raises:
            WhenceError: Both become the same.
        """
        black, white = (
            to_pixels(Image.new("RGB", _PROBE, color)).double().flatten(1).median(1).values.tolist()
            for color in ("black", "white")
        )
        if any(low == high for low, high in zip(black, white, strict=True)):
            raise WhenceError("The processor makes black and white the same.")
        std = tuple(1 / (high - low) for low, high in zip(black, white, strict=True))
        return cls(tuple(-low * s for low, s in zip(black, std, strict=True)), std)

    def is_close(self, other: PixelScale) -> bool:
        """Whether another scale gives nearly the same pixels."""
        ends = torch.tensor([0.0, 1.0]).double().expand(len(self.mean), 1, 2)
        return torch.allclose(self.to_model(ends), other.to_model(ends), rtol=1e-3, atol=1e-3)

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
        """Read the preprocessing from timm's data configuration, which `can_read_timm`."""
        _, height, width = config["input_size"]
        resized = tuple(math.floor(side / config["crop_pct"]) for side in (height, width))
        return cls(
            (height, width),
            resized[0] if config["crop_mode"] == "center" else (resized[0], resized[1]),
            tuple(config["mean"]),
            tuple(config["std"]),
            Image.Resampling[config["interpolation"].upper()],
        )

    @staticmethod
    def can_read_timm(config: Mapping[str, Any]) -> bool:
        """Whether a data configuration of timm crops the middle of a square, or squashes photos."""
        _, height, width = config["input_size"]
        return config["crop_mode"] == "squash" or (config["crop_mode"], height) == ("center", width)

    @property
    def scale(self) -> PixelScale:
        """The normalisation of pixels."""
        return PixelScale(self.mean, self.std)

    def __call__(self, images: Sequence[Image.Image]) -> PreparedBatch:
        """Prepare a batch of photos."""
        photos = [Photo.from_crop(image, self._find_box(image.size)) for image in images]
        return stack_photos([self._to_pixels(image) for image in images], photos)

    def _find_box(self, size: tuple[int, int]) -> Box:
        if not isinstance(self.resize, int):
            return find_crop_box(size, self.resize, self.size, round)
        middle = find_middle(size)
        narrow = (middle[2] - middle[0], middle[3] - middle[1])
        return move_box(find_crop_box(narrow, self.resize, self.size, round), middle)

    def _to_pixels(self, image: Image.Image) -> Tensor:
        if isinstance(self.resize, int):
            image = narrow_to_middle(image)
        width, height = compute_resized_size(image.size, self.resize)
        rows, columns = self.size
        left, top = round((width - columns) / 2), round((height - rows) / 2)
        image = image.resize((width, height), self.resample)
        image = image.crop((left, top, left + columns, top + rows))
        return self.scale.to_model(torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255)


class ProbedPreprocessor:
    """Prepare photos in a way that is known from known pictures alone: which part of them is seen.

    A subclass says how one photo becomes pixels, and how colours are scaled.
    """

    def __init__(self) -> None:
        self._boxes: dict[tuple[int, int], Box | None] = {}

    def to_pixels(self, image: Image.Image) -> Tensor:
        """Make pixels of a photo: (3, height, width)."""
        raise NotImplementedError

    @cached_property
    def scale(self) -> PixelScale:
        """The normalisation of pixels."""
        raise NotImplementedError

    def find_photo(self, image: Image.Image, pixels: Tensor, narrows: bool = False) -> Photo:
        """Find what the model saw of a photo: a part of it, or else the pixels themselves.

        Args:
            image: The photo.
            pixels: What became of it.
            narrows: Whether it was narrowed to its middle before.
        """
        middle = find_middle(image.size) if narrows else (0, 0, *image.size)
        size = (middle[2] - middle[0], middle[3] - middle[1])
        try:
            box = self._boxes[size]
        except KeyError:
            box = self._find_box(size)
            if len(self._boxes) >= _MAX_SIZES:
                self._boxes.clear()  # which another thread may do at any time
            self._boxes[size] = box
        return (
            to_photo(self.to_values(pixels))
            if box is None
            else Photo.from_crop(image, move_box(box, middle))
        )

    def _find_box(self, size: tuple[int, int]) -> Box | None:
        return read_probe(self.to_values(self.to_pixels(draw_probe(size))), size)

    def to_values(self, pixels: Tensor) -> NDArray[np.float64]:
        """Convert the model's pixels to (height, width, 3), values from 0 to 255."""
        values = self.scale.to_unit(pixels.double().cpu()) * 255
        return values.permute(1, 2, 0).numpy()


class ProcessorPreprocessor(ProbedPreprocessor):
    """Prepare photos with an image processor of transformers."""

    def __init__(self, processor: Callable[..., Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.processor = processor
        self._proven = ProvenSizes()

    def __call__(self, images: Sequence[Image.Image]) -> PreparedBatch:
        """Prepare a batch of photos, one by one: some processors keep their proportions."""
        crops = bool(getattr(self.processor, "do_center_crop", False))
        pixels = [self.to_pixels(narrow_to_middle(one) if crops else one) for one in images]
        pairs = zip(images, pixels, strict=True)
        return stack_photos(pixels, [self.find_photo(*pair, crops) for pair in pairs])

    @cached_property
    @override
    def scale(self) -> PixelScale:
        """The normalisation of pixels: that of the processor's settings, if they tell all of it."""
        stated = PixelScale.from_processor(self.processor)
        measured = PixelScale.measure(self.to_pixels)
        return stated if stated.is_close(measured) else measured

    @override
    def to_pixels(self, image: Image.Image) -> Tensor:
        pixels = self.processor([image], return_tensors="pt")["pixel_values"][0]
        if pixels.dim() != 3:
            raise WhenceError(
                f"The image processor makes {tuple(pixels.shape)} of a photo, and not pixels (3, "
                f"height, width). Explain what it returns: Explainer(model).explain(inputs)."
            )
        return pixels

    @override
    def _find_box(self, size: tuple[int, int]) -> Box | None:
        expected = find_processor_box(size, self.processor)
        if self._proven.is_between(size):
            return expected
        found = read_probe(self.to_values(self.to_pixels(draw_probe(size))), size, expected)
        self._proven.note(size, found == expected)
        return found


def find_processor(loaded: LoadedModel) -> Any:
    """Return the image processor of transformers that prepares a model's photos."""
    processor = getattr(loaded.preprocessor, "processor", None)
    if processor is None:
        raise WhenceError(
            f"whence does not know how '{loaded.name}' prepares photos: its preprocessor is "
            f"no image processor of transformers."
        )
    return processor


def to_photo(values: NDArray[np.float64]) -> Photo:
    """The photo of pixels as a model saw them: (height, width, 3), values from 0 to 255."""
    return Photo.from_crop(Image.fromarray(values.round().clip(0, 255).astype(np.uint8)))


def stack_photos(pixels: Sequence[Tensor], photos: list[Photo]) -> PreparedBatch:
    """Stack the pixels of photos to a batch, with a note for each that was cropped much."""
    if len({tuple(one.shape) for one in pixels}) > 1:
        raise WhenceError(
            "The photos have different sizes even when prepared for the model; explain them one by "
            "one."
        )
    notes = [_note_crop(photo.image.size, photo.box) for photo in photos]
    return PreparedBatch(torch.stack(list(pixels)), notes, photos=photos)


def _note_crop(size: tuple[int, int], box: Box) -> list[str]:
    """Note the share of the photo that the model saw, if it is small."""
    share = (box[2] - box[0]) * (box[3] - box[1]) / (size[0] * size[1])
    cropped = share < _MIN_SEEN_SHARE
    return [f"the model saw only the middle {share:.0%} of the photo"] if cropped else []
