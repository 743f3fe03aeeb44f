"""Colour maps for scores, colours of the light and dark theme, and conversions between them.

The maps are built in OKLab, so that equal steps of score look like equal steps of colour.

OKLab is the perceptual colour space of B. Ottosson, "A perceptual color space for image
processing" (2020). The sequential maps rise evenly in lightness, so that they keep their order for
every kind of colour vision and in print without colour. The diverging map pairs blue with orange,
which all common kinds of colour blindness keep apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whence.errors import WhenceError

Floats = NDArray[np.float32 | np.float64]
Bytes = NDArray[np.uint8]

# Matrices from linear sRGB to the responses of cones (LMS), and from their cube roots to OKLab.
_TO_LMS = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
_TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


@dataclass(frozen=True)
class Colormap:
    """Colours for scores from 0 to 1, or from -1 to 1 if diverging."""

    name: str
    # Lightness, chroma and hue in degrees (OKLCH), evenly spaced over the scores.
    anchors: tuple[tuple[float, float, float], ...]
    diverging: bool = False

    def __call__(self, values: ArrayLike) -> Bytes:
        """Colours (..., 3) of values."""
        values = np.asarray(values, dtype=np.float64)
        at = np.linspace(-1 if self.diverging else 0, 1, len(self.anchors))
        channels = np.moveaxis(lch_to_lab(self.anchors), -1, 0)
        return to_bytes(lab_to_srgb(np.stack([np.interp(values, at, c) for c in channels], -1)))


_HEAT = Colormap(
    "heat",
    (
        (0.22, 0.070, 295),
        (0.36, 0.150, 310),
        (0.50, 0.180, 355),
        (0.64, 0.195, 35),
        (0.78, 0.165, 70),
        (0.92, 0.150, 102),
    ),
)
_LAGOON = Colormap(
    "lagoon",
    (
        (0.25, 0.100, 300),
        (0.39, 0.110, 270),
        (0.53, 0.085, 225),
        (0.67, 0.120, 165),
        (0.81, 0.165, 140),
        (0.95, 0.170, 108),
    ),
)
_BLUE, _ORANGE = 255.0, 50.0
# Each side has the same lightness and chroma, so that neither sign looks stronger.
_BALANCE = Colormap(
    "balance",
    (
        (0.65, 0.165, _BLUE),
        (0.81, 0.092, _BLUE),
        (0.98, 0.000, _BLUE),
        (0.81, 0.092, _ORANGE),
        (0.65, 0.165, _ORANGE),
    ),
    diverging=True,
)
_MAPS = {colormap.name: colormap for colormap in (_HEAT, _LAGOON, _BALANCE)}


def list_colormaps() -> list[str]:
    """The names of the colour maps, which `colormap=` takes."""
    return ["auto", *_MAPS]


def get_colormap(name: str, signed: bool) -> Colormap:
    """The colour map of a name, if it can show scores of such signs; "auto" suits them."""
    if name == "auto":
        return _BALANCE if signed else _HEAT
    if name not in _MAPS:
        names = ", ".join(list_colormaps())
        raise WhenceError(f"There is no colormap '{name}'; there are {names}.")
    if signed and not _MAPS[name].diverging:
        raise WhenceError(
            f"The scores have both signs, which the colormap '{name}' cannot show; "
            f"choose 'balance' or 'auto'."
        )
    return _MAPS[name]


@dataclass(frozen=True)
class Theme:
    """Colours of a page as #rrggbb."""

    background: str
    ink: str  # of text
    muted: str  # of less important text
    track: str  # of empty bars and lines
    bar: str  # of filled bars


THEMES = {
    "light": Theme("#ffffff", "#1b1b1f", "#5f6068", "#e4e4e9", "#5b6072"),
    "dark": Theme("#17181c", "#f2f2f4", "#a3a4ad", "#34353c", "#a9adbd"),
}


def get_theme(name: str) -> Theme:
    """The theme of a name, "light" or "dark"."""
    if name not in THEMES:
        raise WhenceError(f"There is no theme '{name}'; there are {', '.join(THEMES)}.")
    return THEMES[name]


def lch_to_lab(lch: ArrayLike) -> Floats:
    """Convert lightness, chroma and hue in degrees (OKLCH) to OKLab."""
    lightness, chroma, hue = np.moveaxis(np.asarray(lch, dtype=np.float64), -1, 0)
    angle = np.deg2rad(hue)
    return np.stack([lightness, chroma * np.cos(angle), chroma * np.sin(angle)], -1)


def lab_to_srgb(lab: ArrayLike) -> Floats:
    """Convert OKLab to sRGB, from 0 to 1 and unclipped."""
    linear = ((np.asarray(lab) @ np.linalg.inv(_TO_LAB).T) ** 3) @ np.linalg.inv(_TO_LMS).T
    curve = 1.055 * np.maximum(linear, 1e-9) ** (1 / 2.4) - 0.055
    rgb: Floats = np.where(linear <= 0.0031308, 12.92 * linear, curve)
    return rgb


def srgb_to_lab(rgb: ArrayLike) -> Floats:
    """Convert sRGB colours from 0 to 1 to OKLab."""
    lab: Floats = np.cbrt(_linearize(rgb) @ np.transpose(_TO_LMS)) @ np.transpose(_TO_LAB)
    return lab


def to_bytes(rgb: ArrayLike) -> Bytes:
    """Convert colours from 0 to 1 to bytes, clipped."""
    clipped: Bytes = np.round(np.clip(np.asarray(rgb), 0, 1) * 255).astype(np.uint8)
    return clipped


def to_hex(rgb: ArrayLike) -> str:
    """Convert a colour of three bytes to #rrggbb."""
    return "#" + bytes(np.asarray(rgb, dtype=np.uint8)).hex()


def measure_contrast(one: ArrayLike, other: ArrayLike) -> float:
    """The contrast ratio of two colours of three bytes, from 1 to 21, as WCAG 2 defines it."""
    weights = (0.2126, 0.7152, 0.0722)
    lights = [float(_linearize(np.asarray(c) / 255) @ weights) + 0.05 for c in (one, other)]
    return max(lights) / min(lights)


def _linearize(rgb: ArrayLike) -> Floats:
    rgb = np.asarray(rgb, dtype=np.float64)
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
