"""Pictures as pixels or as Fourier coefficients, their random transforms and total variation."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Parametrization = Literal["fourier", "pixels"]

# Principal axes of the colours in 500 photos of ImageNet, one a column, each as long as colours
# spread along it: brightness, warm against cold, green against purple.
_COLORS = ((0.249, 0.094, 0.028), (0.256, 0.005, -0.053), (0.259, -0.094, 0.025))
_NOISE = 0.01


class Pixels:
    """A picture whose parameters are its pixels, from 0 to 1; grey with faint noise at first."""

    def __init__(self, size: tuple[int, int], random: torch.Generator, like: Tensor) -> None:
        noise = torch.randn(3, *size, generator=random, dtype=torch.float64)
        self.parameters = (0.5 + _NOISE * noise).clamp(0, 1).to(like)

    def __call__(self) -> Tensor:
        """Return the picture, (3, height, width), from 0 to 1."""
        return self.parameters

    def clamp(self) -> None:
        """Cut the pixels off at 0 and 1."""
        self.parameters.data.clamp_(0, 1)


class Fourier:
    """A picture whose parameters are Fourier coefficients in decorrelated colours.

    Coefficients are scaled to the spectrum of photos, and a sigmoid bounds the pixels.

    Attributes:
        parameters: (2, 3, height, width // 2 + 1), real and imaginary part of each coefficient in
            each of three colours, relative to those of photos.
    """

    def __init__(self, size: tuple[int, int], random: torch.Generator, like: Tensor) -> None:
        self._size = size
        down = torch.fft.fftfreq(size[0], dtype=torch.float64)[:, None]
        right = torch.fft.rfftfreq(size[1], dtype=torch.float64)[None]
        frequency = (down**2 + right**2).sqrt().clamp(min=1 / max(size))
        colors = torch.tensor(_COLORS, dtype=torch.float64)
        self._scale = (1 / frequency).to(like)
        self._colors = (colors / colors.norm(dim=0).max()).to(like)
        noise = torch.randn(2, 3, *frequency.shape, generator=random, dtype=torch.float64)
        self.parameters = (_NOISE * noise).to(like)

    def __call__(self) -> Tensor:
        """Return the picture, (3, height, width), from 0 to 1."""
        real, imaginary = self.parameters * self._scale
        channels = torch.fft.irfft2(torch.complex(real, imaginary), s=self._size, norm="ortho")
        return torch.einsum("rc,chw->rhw", self._colors, channels).sigmoid()

    def clamp(self) -> None:
        """Do nothing: the sigmoid bounds the pixels."""


PARAMETRIZATIONS: dict[str, type[Pixels] | type[Fourier]] = {"fourier": Fourier, "pixels": Pixels}


def transform_randomly(
    picture: Tensor, random: torch.Generator, jitter: int, rotation: float, zoom: float
) -> Tensor:
    """Shift a picture, (3, height, width), around its edges, rotate and scale it, randomly.

    The largest shift is in pixels, the largest angle in degrees, the largest zoom a fraction.
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
    # Coordinates are relative to height and width, so the rotation depends on the aspect ratio.
    rows = ((cosine, -sine * height / width, 0.0), (sine * width / height, cosine, 0.0))
    grid = F.affine_grid(picture.new_tensor([rows]), [1, 3, height, width], align_corners=False)
    rotated = F.grid_sample(picture[None], grid, padding_mode="reflection", align_corners=False)
    return rotated[0]


def compute_total_variation(picture: Tensor) -> Tensor:
    """Compute the mean squared difference of neighbouring pixels of (3, height, width)."""
    down = picture[:, 1:] - picture[:, :-1]
    right = picture[:, :, 1:] - picture[:, :, :-1]
    return down.square().mean() + right.square().mean()
