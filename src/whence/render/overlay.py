"""A heatmap over a photo."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from whence.errors import WhenceError
from whence.render.colors import Bytes, Colormap, Floats, get_colormap

# Negative scores below this part of the largest are rounding, not evidence against.
_ROUNDING = 1e-6


def overlay(
    image: Image.Image,
    scores_map: Any,
    *,
    colormap: str = "auto",
    opacity: float = 0.6,
    signed: bool | None = None,
) -> Image.Image:
    """The photo with its heatmap over it.

    Scores of both signs are shown relative to the largest absolute one, others from the lowest to
    the highest. The colours grow opaque with the score, so that the photo stays visible where
    nothing was found, though in paler colours.

    Args:
        image: The photo, as the model saw it: with the same crop.
        scores_map: (rows, columns) or (height, width), upsampled smoothly to the photo's size.
        colormap: Any of `colormaps()`; "auto" suits the sign of the scores.
        opacity: Of the strongest colour, from 0 to 1.
        signed: Whether scores below 0 are shown; if left out, they are where there are any.

    Returns:
        An RGB image of the photo's size.

    Raises:
        WhenceError: The scores are not a finite map, or a setting is out of range.
    """
    scores = as_map(scores_map)
    signed = is_signed(scores) if signed is None else signed
    colors = get_colormap(colormap, signed)
    return blended(as_rgb(image), contrasted(scores), colors, check_opacity(opacity))


def blended(photo: Image.Image, scores: Floats, colors: Colormap, opacity: float) -> Image.Image:
    """An RGB photo under relative scores, of which a sequential map shows the positive ones."""
    shown = levels(upsampled(scores, photo.size), colors)
    table, alphas = color_table(colors), alpha_table(colors, opacity)
    heat = Image.fromarray(shown)
    heat.putpalette(table.tobytes())
    alpha = Image.fromarray(shown).point([int(a) for a in alphas])
    # The photo loses colour so that the heatmap's colours are the only strong ones.
    muted = Image.blend(photo, photo.convert("L").convert("RGB"), opacity)
    return Image.composite(heat.convert("RGB"), muted, alpha)


def color_table(colors: Colormap) -> Bytes:
    """The map's colours at 256 levels; in a diverging map, level 128 is 0.

    A diverging map is pale near 0. Over a photo, weak scores are see-through instead.
    """
    values = _table_values(colors)
    return colors(np.sign(values) * (1 + np.abs(values)) / 2 if colors.diverging else values)


def alpha_table(colors: Colormap, opacity: float) -> Bytes:
    """How opaque each of the 256 levels is, from 0 to 255."""
    strength = np.abs(_table_values(colors))
    # Signed scores are mostly small beside their largest, and would be lost.
    return np.round(255 * opacity * strength ** (0.6 if colors.diverging else 0.8)).astype(np.uint8)


def upsampled(scores: Floats, size: tuple[int, int]) -> Floats:
    """Scores resized to width and height, within the range that they had.

    Bicubic, as bilinear leaves creases between patches; clipped, as bicubic overshoots.
    """
    resized = Image.fromarray(scores.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    found: Floats = np.clip(np.asarray(resized), scores.min(), scores.max())
    return found


def contrasted(scores: Floats) -> Floats:
    """Scores as a map shows them: signed relative to the largest, others from lowest to highest.

    What is the same everywhere says nothing of any place: a constant map is one of zeros.
    """
    return relative(scores - max(scores.min(initial=np.inf), 0)) if scores.size else scores


def relative(scores: Floats) -> Floats:
    """Scores divided by the largest absolute one; zeros stay zeros."""
    largest = np.abs(scores).max(initial=0)
    return scores / largest if largest > 0 else np.zeros_like(scores)


def is_signed(scores: Floats) -> bool:
    """Whether any score is below 0 by more than rounding."""
    return bool(scores.min(initial=0) < -_ROUNDING * np.abs(scores).max(initial=0))


def as_scores(scores: Any) -> Floats:
    """A tensor or an array as float64 numbers.

    Raises:
        WhenceError: They hold NaN or infinite values.
    """
    if isinstance(scores, torch.Tensor):
        scores = scores.detach().double().cpu().numpy()
    found: Floats = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(found).all():
        raise WhenceError("The scores hold NaN or infinite values, which have no colour.")
    return found


def as_map(scores: Any) -> Floats:
    """A tensor or an array as a map of finite numbers.

    Raises:
        WhenceError: It is not two-dimensional, is empty, or holds NaN or infinite values.
    """
    found = as_scores(scores)
    if found.ndim != 2 or 0 in found.shape:
        raise WhenceError(f"A heatmap has rows and columns, but this has shape {found.shape}.")
    return found


def as_rgb(image: Image.Image) -> Image.Image:
    """Any picture as RGB: 16 bits are brought to 8, and white shows through what is transparent."""
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
    """The opacity, if it is one.

    Raises:
        WhenceError: It is not between 0 and 1.
    """
    if not 0 <= opacity <= 1:
        raise WhenceError(f"opacity lies between 0 and 1; it is {opacity}.")
    return opacity


def levels(scores: Floats, colors: Colormap) -> Bytes:
    """Which of the 256 levels of a map's tables each relative score is shown at."""
    diverging = colors.diverging
    scores = 128 + 127 * np.clip(scores, -1, 1) if diverging else 255 * np.clip(scores, 0, 1)
    return np.round(scores).astype(np.uint8)


def _table_values(colors: Colormap) -> Floats:
    every = np.arange(256)
    return np.clip((every - 128) / 127, -1, 1) if colors.diverging else every / 255
