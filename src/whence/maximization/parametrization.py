"""Pictures made of numbers that are free to move, and ways to look at them."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Parametrization = Literal["fourier", "pixels"]

# How colours vary in photos: brightness, warm against cold, green against purple. The columns are
# the principal axes of the colours in 500 photos of ImageNet, as long as colours spread along them.
_COLORS = (
    (0.249, 0.094, 0.028),
    (0.256, 0.005, -0.053),
    (0.259, -0.094, 0.025),
)
_NOISE = 0.01


class Pixels:
    """The pixels themselves, kept from 0 to 1; grey with a little noise at the start.

    Attributes:
        free: (3, height, width), the numbers that move.
    """

    def __init__(self, size: tuple[int, int], random: torch.Generator, like: Tensor) -> None:
        noise = torch.randn(3, *size, generator=random, dtype=torch.float64)
        self.free = (0.5 + _NOISE * noise).clamp(0, 1).to(like)

    def __call__(self) -> Tensor:
        """The picture, (3, height, width), from 0 to 1."""
        return self.free

    def bound(self) -> None:
        """Bring what has moved too far back."""
        self.free.data.clamp_(0, 1)


class Fourier:
    """Waves in decorrelated colours, large where photos have much of them; then a sigmoid.

    Attributes:
        free: (2, 3, height, width // 2 + 1), the numbers that move: real and imaginary part of each
            wave in each of three colours, as a multiple of what photos have.
    """

    def __init__(self, size: tuple[int, int], random: torch.Generator, like: Tensor) -> None:
        self._size = size
        height, width = size
        down = torch.fft.fftfreq(height, dtype=torch.float64)[:, None]
        right = torch.fft.rfftfreq(width, dtype=torch.float64)[None]
        frequency = (down**2 + right**2).sqrt().clamp(min=1 / max(size))
        colors = torch.tensor(_COLORS, dtype=torch.float64)
        self._scale = (1 / frequency).to(like)
        self._colors = (colors / colors.norm(dim=0).max()).to(like)
        shape = (2, 3, *frequency.shape)
        noise = torch.randn(shape, generator=random, dtype=torch.float64)
        self.free = (_NOISE * noise).to(like)

    def __call__(self) -> Tensor:
        """The picture, (3, height, width), from 0 to 1."""
        real, imaginary = self.free * self._scale
        waves = torch.complex(real, imaginary)
        channels = torch.fft.irfft2(waves, s=self._size, norm="ortho")
        return torch.einsum("rc,chw->rhw", self._colors, channels).sigmoid()

    def bound(self) -> None:
        """Nothing moves too far: the sigmoid ends at 0 and 1."""


PARAMETRIZATIONS: dict[str, type[Pixels] | type[Fourier]] = {"fourier": Fourier, "pixels": Pixels}


def moved(
    picture: Tensor, random: torch.Generator, jitter: int, rotation: float, zoom: float
) -> Tensor:
    """A picture, (3, height, width), shifted around its edges, turned and scaled at random.

    Args:
        picture: The picture.
        random: Where random numbers come from.
        jitter: Shifted by at most so many pixels down and right.
        rotation: Turned by at most so many degrees.
        zoom: Scaled by a factor of at most 1 plus or minus this.
    """
    if jitter:
        down, right = torch.randint(-jitter, jitter + 1, (2,), generator=random).tolist()
        picture = picture.roll((down, right), (1, 2))
    if not rotation and not zoom:
        return picture
    turn, scale = (2 * torch.rand(2, generator=random, dtype=torch.float64) - 1).tolist()
    angle, scale = math.radians(rotation * turn), 1 / (1 + zoom * scale)
    height, width = picture.shape[1:]
    cosine, sine = scale * math.cos(angle), scale * math.sin(angle)
    # Places are told as shares of height and width, so turning a rectangle needs their proportion.
    rows = ((cosine, -sine * height / width, 0.0), (sine * width / height, cosine, 0.0))
    grid = F.affine_grid(picture.new_tensor([rows]), [1, 3, height, width], align_corners=False)
    turned = F.grid_sample(picture[None], grid, padding_mode="reflection", align_corners=False)
    return turned[0]


def total_variation(picture: Tensor) -> Tensor:
    """The mean square of differences between neighbours, down and right, of (3, height, width)."""
    down = picture[:, 1:] - picture[:, :-1]
    right = picture[:, :, 1:] - picture[:, :, :-1]
    return down.square().mean() + right.square().mean()
