"""The photo that was explained, and the part of it that the model saw."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

Box = tuple[float, float, float, float]

# A picture of the result is a few hundred pixels wide; a larger photo would not be drawn better.
MAX_SIDE = 1024


@dataclass(frozen=True)
class Photo:
    """A photo and the part of it that the model saw.

    Attributes:
        image: The whole photo, RGB and upright, at most 1024 pixels wide and high.
        box: The part that the model saw, in pixels of `image`: left, top, right, bottom.
    """

    image: Image.Image
    box: Box

    @classmethod
    def from_crop(cls, image: Image.Image, box: Box | None = None) -> Photo:
        """Keep a photo of any size, made smaller if it is large, and a box in its own pixels.

        Args:
            image: The photo, upright.
            box: What the model saw of it; all of it if left out.
        """
        width, height = image.size
        rgb = image if image.mode == "RGB" else image.convert("RGB")
        photo = cls(rgb, box or (0.0, 0.0, width, height))
        photo = photo._scale(min(1.0, MAX_SIDE / max(width, height)))
        # What happens to the user's image later is no matter of the explanation.
        return photo if photo.image is not image else cls(image.copy(), photo.box)

    @cached_property
    def crop(self) -> Image.Image:
        """The part that the model saw, in the proportions it has in the photo."""
        if not self.has_crop:
            return self.image
        width, height = (max(1, round(side)) for side in self._seen_size)
        return self.image.resize((width, height), Image.Resampling.BICUBIC, self.box)

    @property
    def has_crop(self) -> bool:
        """Whether the model saw a part of the photo only."""
        whole = (0, 0, *self.image.size)
        return any(abs(a - b) > 1e-6 for a, b in zip(self.box, whole, strict=True))

    def locate(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the seen part lies in the photo, in pixels of `image`.

        Args:
            x: The point as a share of the seen part's width, from 0 to 1.
            y: The same of its height.
        """
        left, top, right, bottom = self.box
        return left + x * (right - left), top + y * (bottom - top)

    def shrink(self, side: int) -> Photo:
        """The same photo with a seen part of at most `side` pixels in width and height."""
        return self._scale(min(1.0, side / max(self._seen_size)))

    @property
    def _seen_size(self) -> tuple[float, float]:
        return self.box[2] - self.box[0], self.box[3] - self.box[1]

    def _scale(self, scale: float) -> Photo:
        if scale >= 1:
            return self
        old = self.image.size
        width, height = (max(1, round(side * scale)) for side in old)
        left, top, right, bottom = self.box
        factors = width / old[0], height / old[1]
        image = self.image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        box = left * factors[0], top * factors[1], right * factors[0], bottom * factors[1]
        return Photo(image, box)


def encode_photos(photos: list[Photo]) -> tuple[list[list[float]], dict[str, Tensor]]:
    """Photos as they are saved: their boxes, and the bytes of their JPEG files by name."""
    tensors = {}
    for number, photo in enumerate(photos):
        file = io.BytesIO()
        photo.image.save(file, "JPEG", quality=95, subsampling=0)
        tensors[_name(number)] = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    return [list(photo.box) for photo in photos], tensors


def decode_photos(boxes: Any, tensors: Any, count: int) -> list[Photo]:
    """Read what `encode_photos` gave of so many photos.

    Raises:
        ValueError: It is damaged, or nothing that whence writes.
    """
    if len(boxes) != count:
        raise ValueError(f"it has {len(boxes)} photos for {count} samples")
    return [_decode(box, tensors[_name(number)]) for number, box in enumerate(boxes)]


def _decode(box: Any, tensor: Tensor) -> Photo:
    image = Image.open(io.BytesIO(tensor.numpy().astype(np.uint8).tobytes()), formats=["JPEG"])
    # Asked before the pixels are unpacked: a small file could hold a huge photo.
    if max(image.size) > MAX_SIDE:
        raise ValueError(f"its photo is {image.size[0]}x{image.size[1]} pixels")
    left, top, right, bottom = (float(side) for side in box)
    width, height = (side + 1e-3 for side in image.size)  # boxes are rounded
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise ValueError(f"the part of the photo is {box}, outside of it")
    return Photo(image.convert("RGB"), (left, top, right, bottom))


def _name(number: int) -> str:
    return f"photo.{number}"
