"""Photos and masks as the model sees them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from whence.errors import WhenceError
from whence.metrics.segmentation import boxes_to_masks
from whence.models import LoadedModel
from whence.models.geometry import Geometry, narrowed
from whence.models.scale import processor_of

if TYPE_CHECKING:
    from whence.datasets import Sample

View = Literal["model", "whole"]
_IGNORED = 255
# Masks travel through the preparation as these grey values, so that what is padded (0) is known.
_TRAVELLING = {0: 1, 1: 2, _IGNORED: 3}


@dataclass(frozen=True)
class Seen:
    """A sample as the model sees it.

    Attributes:
        sample: The sample.
        pixels: (3, height, width), normalised.
        mask: (height, width) uint8: 1 object, 0 background, 255 ignored; None without one.
        boxes: The same, with 1 inside of the sample's boxes.
    """

    sample: Sample
    pixels: Tensor
    mask: Tensor | None = None
    boxes: Tensor | None = None


def see(loaded: LoadedModel, sample: Sample, view: View = "model") -> Seen:
    """Prepare a photo, its mask and its boxes, all through the same geometry.

    Args:
        loaded: The model.
        sample: The sample.
        view: ``"model"``: resized and cropped as the model wants it. ``"whole"``: the whole photo,
            its proportions changed to those of the model's input.
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
    pixels = loaded.preparation([image]).inputs
    assert isinstance(pixels, Tensor)
    shape = (int(pixels.shape[-2]), int(pixels.shape[-1]))
    if view == "whole":
        pixels = _through(loaded, image, shape)
    boxes = None
    if sample.boxes:
        marked = boxes_to_masks([sample.boxes], (size[1], size[0]))[0].numpy()
        boxes = _seen_mask(loaded, marked, shape if view == "whole" else None)
    mask = None
    if sample.mask is not None:
        mask = _seen_mask(loaded, sample.mask, shape if view == "whole" else None)
    return Seen(sample, pixels[0], mask, boxes)


def by_shape(seen: Sequence[Seen]) -> list[list[int]]:
    """Places of photos that can go together: some models keep proportions."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at, one in enumerate(seen):
        groups[tuple(one.pixels.shape)].append(at)
    return list(groups.values())


def _seen_mask(loaded: LoadedModel, mask: Any, whole: tuple[int, int] | None) -> Tensor:
    """A mask through the geometry of photos, with nearest neighbour."""
    grey = np.zeros(mask.shape, dtype=np.uint8)
    for value, travels in _TRAVELLING.items():
        grey[mask == value] = travels
    image = Image.fromarray(np.stack([grey] * 3, -1))
    values = _through(loaded, image, whole, nearest=True)[0, 0].round().to(torch.uint8)
    found = torch.full_like(values, _IGNORED)
    for value, travels in _TRAVELLING.items():
        found[values == travels] = value
    return found


def _through(
    loaded: LoadedModel, image: Image.Image, whole: tuple[int, int] | None, nearest: bool = False
) -> Tensor:
    """An image through a model's preparation, changed to view the whole or to keep grey values."""
    preparation: Any = loaded.preparation
    if isinstance(preparation, Geometry):
        changes: dict[str, Any] = {} if whole is None else {"resize": whole}
        if nearest:
            none, one = ((v,) * len(preparation.mean) for v in (0.0, 1.0 / 255))
            changes |= {"resample": Image.Resampling.NEAREST, "mean": none, "std": one}
        pixels = dataclasses.replace(preparation, **changes)([image]).inputs
        assert isinstance(pixels, Tensor)
        return pixels
    processor = processor_of(loaded)
    if whole is None and getattr(processor, "do_center_crop", False):
        image = narrowed(image)
    asked: dict[str, Any] = {}
    if whole is not None:
        size = {"height": whole[0], "width": whole[1]}
        asked |= {"size": size, "do_resize": True, "do_center_crop": False}
    if nearest:
        plain = {"do_normalize": False, "do_rescale": False}
        asked |= {"resample": Image.Resampling.NEAREST, **plain}
    pixels = processor([image], return_tensors="pt", **asked)["pixel_values"]
    assert isinstance(pixels, Tensor)
    return pixels.float()
