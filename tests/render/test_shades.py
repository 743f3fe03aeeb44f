"""Shades of words: readable at every score, stronger with the score."""

import numpy as np
import pytest

from whence.render.colors import THEMES, measure_contrast
from whence.render.shades import TERMINAL_INK, shade_terminal_word, shade_word


def parse_color(color: str):
    return np.frombuffer(bytes.fromhex(color.removeprefix("#")), np.uint8)


@pytest.mark.parametrize("theme", THEMES)
def test_words_are_readable_at_every_score(theme):
    ink = parse_color(THEMES[theme].ink)
    for share in np.linspace(-1, 1, 401):
        assert measure_contrast(shade_word(share, theme), ink) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_text_beside_the_words_is_readable(theme):
    for color in (THEMES[theme].ink, THEMES[theme].muted):
        assert measure_contrast(parse_color(color), parse_color(THEMES[theme].background)) >= 4.5


def test_terminal_words_are_readable_at_every_score():
    for share in np.linspace(-1, 1, 401):
        assert measure_contrast(shade_terminal_word(share), TERMINAL_INK) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_stronger_words_stand_out_more(theme):
    for sign in (1, -1):
        ground = parse_color(THEMES[theme].background)
        found = [
            measure_contrast(shade_word(sign * s, theme), ground) for s in np.linspace(0, 1, 11)
        ]
        assert found[0] == 1
        assert (np.diff(found) > 0).all()
