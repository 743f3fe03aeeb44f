"""Computes the attention of one token in every head of every layer, for the page to show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence._util.text import to_printable
from whence.errors import WhenceError
from whence.models import LoadedModel, PreparedBatch
from whence.render.colors import Floats, lab_to_srgb, lch_to_lab, to_bytes, to_hex


@dataclass(frozen=True)
class HeadAttention:
    """The attention of one token to each patch or token of one input."""

    names: list[str]  # of all tokens
    token: int  # the one that attends
    weights: list[Floats]  # of each layer, (heads, units)
    layers: list[int]  # the number of each of these layers, counted from 0
    grid: tuple[int, int] | None  # rows and columns of patches; None for a text


def compute_head_attention(
    loaded: LoadedModel, prepared: PreparedBatch, token: int
) -> HeadAttention:
    """Compute the attention of one token in all heads of all layers."""
    attention = loaded.explainer.attention(prepared.inputs)
    tokens, grid = attention.maps[0].shape[-1], attention.grid
    if not 0 <= token < tokens:
        raise WhenceError(f"There is no token {token}; they are 0 to {tokens - 1}.")
    prefix = attention.prefix if grid else 0
    # Cross-attention, of a decoder to its encoder, has no position on the one input.
    weights: dict[int, Floats] = {
        layer: heads[0, :, token, prefix:].detach().double().cpu().numpy()
        for layer, heads in enumerate(attention.maps)
        if heads.shape[-2:] == (tokens, tokens)
    }
    if grid:
        names = _name_patches(grid, prefix)
    else:
        strings = attention.tokens.strings[0] if attention.tokens else [""] * tokens
        names = [to_printable(string) for string in strings]
    return HeadAttention(names, token, list(weights.values()), list(weights), grid)


def pick_distinct_colors(count: int) -> list[str]:
    """Pick colours as far apart in hue as possible, readable on light and on dark pages."""
    hues = np.arange(count) * 360 / count + 30
    lch = np.stack([np.full(count, 0.64), np.full(count, 0.15), hues], -1)
    return [to_hex(color) for color in to_bytes(lab_to_srgb(lch_to_lab(lch)))]


def _name_patches(grid: tuple[int, int], prefix: int) -> list[str]:
    extra = ["class token", *(f"extra token {n}" for n in range(1, prefix))][:prefix]
    return extra + [f"row {row + 1}, column {column + 1}" for row, column in np.ndindex(*grid)]
