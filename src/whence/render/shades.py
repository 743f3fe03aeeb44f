"""Background colours of words by their score, on a page and on a terminal."""

from __future__ import annotations

import numpy as np

from whence.render.colors import (
    THEMES,
    Bytes,
    lab_to_srgb,
    lch_to_lab,
    srgb_to_lab,
    to_bytes,
    to_hex,
)

# Shades on each side of 0. Finer ones cannot be told apart.
LEVELS = 20
_ORANGE, _BLUE = 55.0, 255.0
# Lightness and chroma of the strongest shade. The text stays the theme's ink, so these bound the
# contrast: at least 4.5 to 1 at every shade.
_STRONGEST = {"light": (0.76, 0.135), "dark": (0.53, 0.130)}
# A terminal's background is unknown: its shades keep one lightness, on which black can be read.
_TERMINAL = (0.70, 0.150)
TERMINAL_INK = np.array([0, 0, 0], dtype=np.uint8)


def shade_word(share: float, theme: str) -> Bytes:
    """The background of a word on a page, from the page's own to orange (for) or blue (against).

    `share` is the word's score relative to the largest, from -1 to 1.
    """
    background = THEMES[theme].background.removeprefix("#")
    start = srgb_to_lab(np.frombuffer(bytes.fromhex(background), np.uint8) / 255)
    end = lch_to_lab((*_STRONGEST[theme], _ORANGE if share >= 0 else _BLUE))
    return to_bytes(lab_to_srgb(start + min(abs(share), 1.0) * (end - start)))


def shade_terminal_word(share: float) -> Bytes:
    """The background of a word on a terminal, from grey to orange (for) or blue (against)."""
    lightness, chroma = _TERMINAL
    hue = _ORANGE if share >= 0 else _BLUE
    return to_bytes(lab_to_srgb(lch_to_lab((lightness, chroma * min(abs(share), 1.0), hue))))


def name_shade(level: int) -> str:
    """The CSS class of a shade, from -LEVELS to LEVELS."""
    return f"w{'n' if level < 0 else 'p'}{abs(level)}"


def list_css_colors(theme: str) -> dict[str, str]:
    """A theme's colours and its shades of words, by the names of their CSS variables."""
    shades = {
        name_shade(level): to_hex(shade_word(level / LEVELS, theme))
        for level in range(-LEVELS, LEVELS + 1)
    }
    return vars(THEMES[theme]) | shades
