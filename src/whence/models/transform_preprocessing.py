"""Photos through a function of the user's own, such as a transform of torchvision or timm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from whence._util.text import first_line
from whence.errors import WhenceError
from whence.explanation.photo import Box
from whence.models.crop import draw_probe, read_probe
from whence.models.image_preprocessing import PixelScale, ProbedPreprocessor, stack_photos
from whence.models.loaded import PreparedBatch


class TransformPreprocessor(ProbedPreprocessor):
    """Prepare photos with any function from a PIL image to a tensor (3, height, width).

    How it scales colours and which part of a photo it keeps is read off what it makes of known
    pictures.
    """

    def __init__(self, transform: Callable[[Image.Image], Tensor]) -> None:
        super().__init__()
        self.transform = transform

    def __call__(self, images: Sequence[Image.Image]) -> PreparedBatch:
        """Prepare a batch of photos."""
        pixels = [self.to_pixels(image) for image in images]
        pairs = zip(images, pixels, strict=True)
        return stack_photos(pixels, [self.find_photo(*pair) for pair in pairs])

    @cached_property
    @override
    def scale(self) -> PixelScale:
        """The normalisation of pixels."""
        return PixelScale.measure(self.to_pixels)

    @override
    def _find_box(self, size: tuple[int, int]) -> Box | None:
        probe = draw_probe(size)
        first, again = self.to_pixels(probe), self.to_pixels(probe)
        if first.shape != again.shape or not torch.equal(first, again):
            raise WhenceError(
                "The transform changes photos at random; give the one that is used for testing."
            )
        return read_probe(self.to_values(first), size)

    @override
    def to_pixels(self, image: Image.Image) -> Tensor:
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
