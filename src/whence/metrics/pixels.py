"""Hide pixels of images, and bring scores of patches to pixels."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.errors import WhenceError

Fill = Literal["zero", "mean", "blur"]

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


def fill_pixels(pixels: Tensor, hidden: Tensor, fill: Fill) -> Tensor:
    """Replace the hidden pixels of images that are not normalised yet.

    Args:
        pixels: (n, 3, height, width) between 0 and 1.
        hidden: (n, height, width), true where hidden.
        fill: "zero" is black, "mean" each image's mean colour, "blur" the image blurred.
    """
    if pixels.dim() != 4 or hidden.shape != (len(pixels), *pixels.shape[2:]):
        raise WhenceError(
            f"Pixels (n, 3, height, width) and hidden (n, height, width) have to fit together, not "
            f"{tuple(pixels.shape)} and {tuple(hidden.shape)}."
        )
    if fill == "zero":
        replacement = torch.zeros_like(pixels)
    elif fill == "mean":
        replacement = pixels.double().mean((2, 3), keepdim=True).to(pixels).expand_as(pixels)
    elif fill == "blur":
        replacement = blur_images(pixels)
    else:
        raise WhenceError(f"The fill has to be one of {get_args(Fill)}, not {fill!r}.")
    return torch.where(hidden[:, None], replacement, pixels)


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
