"""What a token attends to, in every head of every layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence._util.text import to_printable
from whence.errors import WhenceError
from whence.inputs.arguments import Call
from whence.layout import Layout, find_layout, find_tokens
from whence.models import LoadedModel, Prepared
from whence.render.colors import Floats, lab_to_srgb, lch_to_lab, to_bytes, to_hex
from whence.tracing.trace import trace


@dataclass(frozen=True)
class Heads:
    """The attention of one token of one input.

    Attributes:
        names: What to call each token.
        token: Which of them is looked at.
        rows: For each layer (heads, units): how much of the token's attention each patch or token
            of the input gets.
        layers: The number of each of these layers, counted from 0.
        grid: Rows and columns of patches; None for a text.
    """

    names: list[str]
    token: int
    rows: list[Floats]
    layers: list[int]
    grid: tuple[int, int] | None


def read_heads(loaded: LoadedModel, prepared: Prepared, token: int) -> Heads:
    """Record one forward pass, and keep the attention of one token.

    Raises:
        WhenceError: There is no such token, or the model has no attention that can be followed.
    """
    call = Call.of(prepared.inputs, loaded.model)
    traced = trace(loaded.model, call.args, dict(call.kwargs), call.main_at)
    tokens = traced.sites[0].tokens
    if not 0 <= token < tokens:
        raise WhenceError(f"There is no token {token}; they are 0 to {tokens - 1}.")
    layout = find_layout(Layout(), tokens, call.main, traced.grids)
    prefix = (layout.prefix or 0) if layout.grid else 0
    # Attention across sequences, of a decoder to its encoder, has no place on the one input.
    within = {
        at: one[0, :, token, prefix:].detach().double().cpu().numpy()
        for at, one in enumerate(traced.attention())
        if one.shape[-2:] == (tokens, tokens)
    }
    names = _names_of_patches(layout.grid, prefix) if layout.grid else _names_of_words(loaded, call)
    return Heads(names, token, list(within.values()), list(within), layout.grid)


def head_colors(heads: int) -> list[str]:
    """As many colours, as far apart in hue as they can be, that show on light and on dark."""
    hues = np.arange(heads) * 360 / heads + 30
    lch = np.stack([np.full(heads, 0.64), np.full(heads, 0.15), hues], -1)
    return [to_hex(color) for color in to_bytes(lab_to_srgb(lch_to_lab(lch)))]


def _names_of_words(loaded: LoadedModel, call: Call) -> list[str]:
    found = find_tokens(call.kwargs, call.main, loaded.tokenizer)
    strings = found.strings[0] if found else [""] * call.main.shape[1]
    return [to_printable(string) for string in strings]


def _names_of_patches(grid: tuple[int, int], prefix: int) -> list[str]:
    before = ["class token", *(f"extra token {at}" for at in range(1, prefix))][:prefix]
    places = np.ndindex(*grid)
    return before + [f"row {row + 1}, column {column + 1}" for row, column in places]
