"""Hide pixels of images, and bring scores of patches to pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.errors import WhenceError
from whence.metrics.imputation import impute_pixels

Fill = Literal["zero", "mean", "blur", "dataset", "road"]

BLUR = 10 / 224
"""Standard deviation of the blur, in shorter sides of the image."""


def upsample_maps(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Upsample maps (n, rows, columns) bilinearly to (n, height, width), as heatmaps are."""
    if maps.dim() != 3:
        raise WhenceError(f"Maps have to be (n, rows, columns), not {tuple(maps.shape)}.")
    up = F.interpolate(maps[:, None], size=tuple(size), mode="bilinear", align_corners=False)
    return up[:, 0]


def spread_patches(patches: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Give each pixel (n, height, width) the value of the patch in which its centre lies.

    Args:
        patches: (n, rows * columns) in reading order, of any type.
        grid: Rows and columns, which need not divide the size.
        size: Height and width.
    """
    if patches.dim() != 2 or patches.shape[1] != grid[0] * grid[1]:
        raise WhenceError(f"{tuple(patches.shape)} is not (n, units) of a grid of {grid}.")
    rows, columns = (
        torch.div((2 * torch.arange(pixels) + 1) * cells, 2 * pixels, rounding_mode="floor")
        for cells, pixels in zip(grid, size, strict=True)
    )
    return patches.reshape(-1, *grid)[:, rows.to(patches.device)][:, :, columns.to(patches.device)]


def fill_pixels(
    pixels: Tensor,
    hidden: Tensor,
    fill: Fill,
    color: Sequence[float] | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """Replace the hidden pixels of images that are not normalised yet.

    Args:
        pixels: (n, 3, height, width) between 0 and 1.
        hidden: (n, height, width), true where hidden.
        fill: "zero" is black, "mean" each image's mean colour, "blur" the image blurred, "dataset"
            one `color` for all, and "road" what `impute_pixels` interpolates from neighbours.
        color: Of each channel, between 0 and 1; for "dataset".
        noise: As `impute_pixels` takes it, for "road".
    """
    if fill == "road":
        return impute_pixels(pixels, hidden, noise)
    if pixels.dim() != 4 or hidden.shape != (len(pixels), *pixels.shape[2:]):
        raise WhenceError(
            f"Pixels (n, 3, height, width) and hidden (n, height, width) have to fit together, not "
            f"{tuple(pixels.shape)} and {tuple(hidden.shape)}."
        )
    return torch.where(hidden[:, None], make_filling(pixels, fill, color), pixels)


def make_filling(pixels: Tensor, fill: Fill, color: Sequence[float] | None = None) -> Tensor:
    """Make what replaces hidden pixels of images, whichever are hidden: of the images' shape.

    Args:
        pixels: As for `fill_pixels`.
        fill: Likewise; "road" depends on what is hidden.
        color: Likewise.
    """
    if fill == "zero":
        return torch.zeros_like(pixels)
    if fill == "mean":
        return pixels.double().mean((2, 3), keepdim=True).to(pixels).expand_as(pixels)
    if fill == "blur":
        return blur_images(pixels)
    if fill == "dataset":
        if color is None or len(color) != pixels.shape[1]:
            raise WhenceError(
                f"The fill 'dataset' needs a colour of {pixels.shape[1]} channels, not {color}."
            )
        return pixels.new_tensor(color).reshape(1, -1, 1, 1).expand_as(pixels)
    if fill == "road":
        raise WhenceError("What the fill 'road' puts at a pixel depends on which are hidden.")
    raise WhenceError(f"The fill has to be one of {get_args(Fill)}, not {fill!r}.")


def blur_images(pixels: Tensor) -> Tensor:
    """Blur images (n, channels, height, width) with a Gaussian.

    Its standard deviation is 10/224 of the shorter side, which is 10 pixels of the usual 224 (Fong,
    Vedaldi, ICCV 2017); it is cut at 4 standard deviations, and images are mirrored at their edges.
    """
    channels = pixels.shape[1]
    sigma = BLUR * min(pixels.shape[2:])
    radius = int(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    window = torch.exp(-0.5 * (offsets / sigma) ** 2)
    window = (window / window.sum()).to(pixels)
    vertical = window.reshape(1, 1, -1, 1).expand(channels, 1, -1, 1)
    padded = F.pad(pixels, (radius,) * 4, mode="reflect")
    rows = F.conv2d(padded, vertical, groups=channels)
    return F.conv2d(rows, vertical.transpose(2, 3), groups=channels)
