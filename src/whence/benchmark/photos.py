"""Prepare photos, masks and boxes of samples as the model sees them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from whence.errors import WhenceError
from whence.metrics.segmentation import draw_boxes
from whence.models import LoadedModel
from whence.models.crop import narrow_to_middle
from whence.models.image_preprocessing import (
    CenterCropPreprocessor,
    find_processor,
)

if TYPE_CHECKING:
    from whence.datasets import Sample

View = Literal["model", "whole"]
Result = TypeVar("Result")
IGNORED = 255
# Masks are preprocessed as these grey values, so that padding (0) is recognised.
_GREY_VALUES = {0: 1, 1: 2, IGNORED: 3}


@dataclass(frozen=True)
class PreparedPhoto:
    """A photo as the model sees it, (3, height, width) and normalised, with its mask and boxes.

    `mask` is (height, width) uint8: 1 object, 0 background, 255 ignored; None without one. `boxes`
    is the same, with 1 inside of the sample's boxes.
    """

    sample: Sample
    pixels: Tensor
    mask: Tensor | None = None
    boxes: Tensor | None = None

    @property
    def name(self) -> str:
        """The name of the sample."""
        return self.sample.name


def prepare_photo(loaded: LoadedModel, sample: Sample, view: View = "model") -> PreparedPhoto:
    """Prepare a photo, its mask and its boxes, all through the same geometry.

    The view ``"model"`` is resized and cropped as the model wants it; ``"whole"`` is the whole
    photo, its proportions changed to those of the model's input.
    """
    image = sample.content
    if not isinstance(image, Image.Image):
        raise WhenceError(f"'{sample.name}' is no photo.")
    size = tuple(image.size)
    if sample.mask is not None and sample.mask.shape != size[::-1]:
        raise WhenceError(
            f"The mask of '{sample.name}' is {sample.mask.shape[1]}x{sample.mask.shape[0]} pixels, "
            f"its photo {size[0]}x{size[1]}."
        )
    pixels = loaded.preprocessor([image]).inputs
    assert isinstance(pixels, Tensor)
    shape = (int(pixels.shape[-2]), int(pixels.shape[-1]))
    if view == "whole":
        pixels = _preprocess(loaded, image, shape)
    inside = draw_boxes([sample.boxes], (size[1], size[0]))[0].numpy() if sample.boxes else None
    mask, boxes = (
        None if one is None else _prepare_mask(loaded, one, shape if view == "whole" else None)
        for one in (sample.mask, inside)
    )
    return PreparedPhoto(sample, pixels[0], mask, boxes)


class ShapedSample(Protocol):
    """A prepared sample with pixels (3, height, width)."""

    @property
    def pixels(self) -> Tensor:
        """The input of the model."""


Shaped = TypeVar("Shaped", bound=ShapedSample)


def compute_by_shape(
    photos: Sequence[Shaped], compute: Callable[[list[Shaped]], list[Result]]
) -> list[Result]:
    """Compute results of photos, those of equal shape together: some models keep proportions."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at, one in enumerate(photos):
        groups[tuple(one.pixels.shape)].append(at)
    results: dict[int, Result] = {}
    for group in groups.values():
        results.update(zip(group, compute([photos[at] for at in group]), strict=True))
    return [results[at] for at in range(len(photos))]


def stack_masks(masks: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """Stack masks of a batch as its maps lie; a photo without one is ignored everywhere."""
    nothing = torch.full(tuple(like.shape[-2:]), IGNORED, dtype=torch.uint8)
    return torch.stack([nothing if mask is None else mask for mask in masks]).to(like.device)


def _prepare_mask(
    loaded: LoadedModel, mask: NDArray[np.uint8], whole: tuple[int, int] | None
) -> Tensor:
    """Preprocess a mask as photos are, with nearest neighbour."""
    grey = np.zeros(mask.shape, dtype=np.uint8)
    for value, grey_value in _GREY_VALUES.items():
        grey[mask == value] = grey_value
    image = Image.fromarray(np.stack([grey] * 3, -1))
    values = _preprocess(loaded, image, whole, nearest=True)[0, 0].round().to(torch.uint8)
    found = torch.full_like(values, IGNORED)
    for value, grey_value in _GREY_VALUES.items():
        found[values == grey_value] = value
    return found


def _preprocess(
    loaded: LoadedModel, image: Image.Image, whole: tuple[int, int] | None, nearest: bool = False
) -> Tensor:
    """Preprocess an image: all of it at the size `whole`, or with its grey values kept."""
    preprocessor = loaded.preprocessor
    if isinstance(preprocessor, CenterCropPreprocessor):
        changes: dict[str, Any] = {} if whole is None else {"resize": whole}
        if nearest:
            none, one = ((v,) * len(preprocessor.mean) for v in (0.0, 1.0 / 255))
            changes |= {"resample": Image.Resampling.NEAREST, "mean": none, "std": one}
        pixels = dataclasses.replace(preprocessor, **changes)([image]).inputs
        assert isinstance(pixels, Tensor)
        return pixels
    processor = find_processor(loaded)
    if whole is None and getattr(processor, "do_center_crop", False):
        image = narrow_to_middle(image)
    options: dict[str, Any] = {}
    if whole is not None:
        size = {"height": whole[0], "width": whole[1]}
        options |= {"size": size, "do_resize": True, "do_center_crop": False}
    if nearest:
        plain = {"do_normalize": False, "do_rescale": False}
        options |= {"resample": Image.Resampling.NEAREST, **plain}
    pixels = processor([image], return_tensors="pt", **options)["pixel_values"]
    assert isinstance(pixels, Tensor)
    return pixels.float()
