"""Photos through a function of the user's own, such as a transform of torchvision or timm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from whence._util.text import first_line
from whence.errors import WhenceError
from whence.explanation.photo import Photo
from whence.models.crop import CropFinder
from whence.models.image_preprocessing import PixelScale, stack_photos, to_photo
from whence.models.loaded import PreparedBatch


class TransformPreprocessor:
    """Prepare photos with any function from a PIL image to a tensor (3, height, width).

    How it scales colours and which part of a photo it keeps is read off what it makes of known
    pictures.
    """

    def __init__(self, transform: Callable[[Image.Image], Tensor]) -> None:
        self.transform = transform
        self._crop = CropFinder(self._process)

    def __call__(self, images: Sequence[Image.Image]) -> PreparedBatch:
        """Prepare a batch of photos."""
        pixels = [self._transform(image) for image in images]
        photos = [self._find_photo(*pair) for pair in zip(images, pixels, strict=True)]
        return stack_photos(pixels, photos)

    @cached_property
    def scale(self) -> PixelScale:
        """The normalisation of pixels."""
        return PixelScale.measure(self._transform)

    def _find_photo(self, image: Image.Image, pixels: Tensor) -> Photo:
        box = self._crop.find(image.size, (0.0, 0.0, *image.size))
        return to_photo(self._to_values(pixels)) if box is None else Photo.from_crop(image, box)

    def _process(self, image: Image.Image) -> NDArray[np.float64]:
        first, again = self._transform(image), self._transform(image)
        if first.shape != again.shape or not torch.equal(first, again):
            raise WhenceError(
                "The transform changes photos at random; give the one that is used for testing."
            )
        return self._to_values(first)

    def _to_values(self, pixels: Tensor) -> NDArray[np.float64]:
        values = self.scale.to_unit(pixels.double().cpu()) * 255
        return values.permute(1, 2, 0).numpy()

    def _transform(self, image: Image.Image) -> Tensor:
        try:
            pixels: object = self.transform(image)
        except Exception as error:  # it is the user's
            raise WhenceError(
                f"The processor cannot prepare a photo: {type(error).__name__}: "
                f"{first_line(error)}. It is called with a PIL image."
            ) from error
        if isinstance(pixels, Tensor) and pixels.dim() == 4 and len(pixels) == 1:
            pixels = pixels[0]
        if not isinstance(pixels, Tensor) or pixels.dim() != 3 or pixels.shape[0] != 3:
            shape = f" of shape {tuple(pixels.shape)}" if isinstance(pixels, Tensor) else ""
            raise WhenceError(
                f"The processor returns {type(pixels).__name__}{shape} for a photo, and not a "
                f"tensor (3, height, width)."
            )
        return pixels
