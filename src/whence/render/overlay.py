"""A heatmap over a photo, and the steps to it: scaling, upsampling, colours, opacity."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch.nn.functional import interpolate

from whence.errors import WhenceError
from whence.render.colors import Bytes, Colormap, Floats, get_colormap

# Negative scores smaller than this share of the largest are rounding, not evidence against.
_ROUNDING = 1e-6
# Where there is no photo, colours fade to this grey as they fade to the photo elsewhere.
_GROUND = "#c8c8c8"


def overlay(
    image: Image.Image,
    scores: ArrayLike | torch.Tensor,
    *,
    colormap: str = "auto",
    opacity: float = 0.6,
    signed: bool | None = None,
) -> Image.Image:
    """Lay a heatmap over a photo.

    Scores of both signs are shown relative to the largest absolute one, others from the lowest to
    the highest. The colours grow opaque with the score, so that the photo stays visible where
    scores are low, though in paler colours.

    Args:
        image: The photo, as the model saw it: with the same crop.
        scores: (rows, columns) or (height, width), upsampled smoothly to the photo's size.
        colormap: Any of `list_colormaps()`; "auto" suits the sign of the scores.
        opacity: Of the strongest colour, from 0 to 1.
        signed: Whether scores below 0 are shown; if left out, they are where there are any.

    Returns:
        An RGB image of the photo's size.

    Raises:
        WhenceError: The scores are not a finite map, or a setting is out of range.
    """
    values = to_finite_array(scores)
    if values.ndim != 2 or 0 in values.shape:
        raise WhenceError(f"A heatmap has rows and columns, but this has shape {values.shape}.")
    colors = get_colormap(colormap, is_signed(values) if signed is None else signed)
    return blend(to_rgb(image), stretch_contrast(values), colors, check_opacity(opacity))


def blend(
    photo: Image.Image,
    shares: Floats,
    colors: Colormap,
    opacity: float,
    strength: float = 1.0,
) -> Image.Image:
    """Lay relative scores over an RGB photo; a sequential map shows the positive ones only.

    A strength below 1 makes the colours paler; the photo stays as it is beside strong ones.
    """
    levels = Image.fromarray(quantize(upsample(shares, photo.size), colors))
    levels.putpalette(_list_palette(colors, opacity * strength), "RGBA")
    heat = levels.convert("RGBA")
    # The photo loses colour so that the heatmap's colours are the only strong ones.
    muted = Image.blend(photo, photo.convert("L").convert("RGB"), min(1.0, 1.5 * opacity))
    muted.paste(heat, (0, 0), heat)
    return muted


def draw_map(
    shares: Floats, colors: Colormap, size: tuple[int, int], strength: float = 1.0
) -> Image.Image:
    """A map without a photo, in the colours of `draw_ramp`."""
    return blend(Image.new("RGB", size, _GROUND), shares, colors, 1.0, strength)


@lru_cache(maxsize=8)
def draw_ramp(colors: Colormap, size: tuple[int, int]) -> Image.Image:
    """All colours of a map from low to high, to stand in a legend; not to be changed."""
    return draw_map(np.linspace(-1 if colors.diverging else 0, 1, 256)[None], colors, size)


def resize(photo: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The RGB photo at another width and height, bicubic.

    By torch, which computes with many pixels at once and gives Pillow's result in a fraction of the
    time. Pixels have a fourth byte, as torch and Pillow are fastest at that.
    """
    if photo.size == size:
        return photo.copy()
    pixels = torch.frombuffer(bytearray(photo.tobytes("raw", "RGBX")), dtype=torch.uint8)
    channels = pixels.view(1, photo.height, photo.width, 4).permute(0, 3, 1, 2)
    resized = interpolate(channels, size[::-1], mode="bicubic", antialias=True)
    content = resized.permute(0, 2, 3, 1).contiguous().numpy().tobytes()
    return Image.frombytes("RGB", size, content, "raw", "RGBX")


def fit_size(shape: tuple[int, int], longest: int) -> tuple[int, int]:
    """Width and height of a picture of this height and width, scaled to a longest side."""
    height, width = shape
    scale = longest / max(height, width)
    return max(1, round(width * scale)), max(1, round(height * scale))


def prepare_map(scores: Floats) -> tuple[Floats, Colormap]:
    """Relative scores as a map shows them, and the colours that suit their sign."""
    return stretch_contrast(scores), get_colormap("auto", is_signed(scores))


def tabulate_colors(colors: Colormap) -> Bytes:
    """The map's colours at 256 levels; in a diverging map, level 128 is 0.

    A diverging map is pale near 0. Over a photo, weak scores are transparent instead.
    """
    values = _list_level_values(colors)
    return colors(np.sign(values) * (1 + np.abs(values)) / 2 if colors.diverging else values)


@lru_cache(maxsize=64)
def _list_palette(colors: Colormap, opacity: float) -> bytes:
    """Red, green, blue and opacity of each level."""
    opacities = tabulate_opacities(colors, opacity)
    return np.column_stack([tabulate_colors(colors), opacities]).tobytes()


def tabulate_opacities(colors: Colormap, opacity: float) -> Bytes:
    """How opaque each of the 256 levels is, from 0 to 255."""
    strength = np.abs(_list_level_values(colors))
    # Signed scores are mostly small beside their largest, and would be lost.
    return np.round(255 * opacity * strength ** (0.6 if colors.diverging else 0.8)).astype(np.uint8)


def quantize(shares: Floats, colors: Colormap) -> Bytes:
    """The level of a map's tables, from 0 to 255, for each relative score."""
    lowest, steps, middle = (-1, 127, 128) if colors.diverging else (0, 255, 0)
    levels = np.clip(shares, lowest, 1)  # a copy, which is then changed in place
    levels *= steps
    levels += middle
    return np.rint(levels, out=levels).astype(np.uint8)


def upsample(scores: Floats, size: tuple[int, int]) -> Floats:
    """Resize scores to width and height, within the range that they had.

    Bicubic, as bilinear leaves creases between patches; clipped, as bicubic overshoots.
    """
    values = scores.astype(np.float32)
    if size[0] > 1:
        channel = torch.from_numpy(values)[None, None]
        resized = interpolate(channel, size[::-1], mode="bicubic", antialias=True)[0, 0].numpy()
    else:  # where torch gives all rows the same value
        resized = np.array(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC))
    return np.clip(resized, scores.min(), scores.max(), out=resized)


def stretch_contrast(scores: Floats) -> Floats:
    """Scale scores for a map: signed ones by the largest, others from the lowest to the highest.

    A constant map has no contrast and becomes zeros.
    """
    lowest = max(scores.min(initial=np.inf), 0)
    return scale_to_largest(scores - lowest) if scores.size else scores


def scale_to_largest(scores: Floats) -> Floats:
    """Divide scores by the largest absolute one; zeros stay zeros."""
    largest = np.abs(scores).max(initial=0)
    return scores / largest if largest > 0 else np.zeros_like(scores)


def is_signed(scores: Floats) -> bool:
    """Whether any score is below 0 by more than rounding."""
    return bool(scores.min(initial=0) < -_ROUNDING * np.abs(scores).max(initial=0))


def to_finite_array(scores: ArrayLike | torch.Tensor) -> Floats:
    """Convert a tensor or an array to float64 numbers; refuse NaN and infinite ones."""
    if isinstance(scores, torch.Tensor):
        scores = scores.detach().double().cpu().numpy()
    values: Floats = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(values).all():
        raise WhenceError("The scores hold NaN or infinite values, which have no colour.")
    return values


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any picture to RGB: 16 bits become 8, and transparent parts white."""
    if not isinstance(image, Image.Image):
        raise WhenceError(f"A PIL image is needed, not {type(image).__name__}.")
    if 0 in image.size:
        raise WhenceError("The image is empty.")
    if image.mode.startswith("I") and np.asarray(image).max() > 255:
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def check_opacity(opacity: float) -> float:
    """The opacity, if it lies between 0 and 1."""
    if not 0 <= opacity <= 1:
        raise WhenceError(f"opacity lies between 0 and 1; it is {opacity}.")
    return opacity


def _list_level_values(colors: Colormap) -> Floats:
    levels = np.arange(256)
    return np.clip((levels - 128) / 127, -1, 1) if colors.diverging else levels / 255
