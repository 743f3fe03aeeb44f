"""The colours of a page, on a light and on a dark background."""

from __future__ import annotations

from dataclasses import dataclass

from whence.errors import WhenceError


@dataclass(frozen=True)
class Theme:
    """Colours as #rrggbb.

    Attributes:
        background: Of the page.
        ink: Of its text.
        muted: Of text that stands back.
        track: Of empty bars and lines.
        bar: Of filled bars.
    """

    background: str
    ink: str
    muted: str
    track: str
    bar: str


THEMES = {
    "light": Theme("#ffffff", "#1b1b1f", "#5f6068", "#e4e4e9", "#5b6072"),
    "dark": Theme("#17181c", "#f2f2f4", "#a3a4ad", "#34353c", "#a9adbd"),
}


def get_theme(name: str) -> Theme:
    """The theme of a name.

    Raises:
        WhenceError: There is no such theme.
    """
    if name not in THEMES:
        raise WhenceError(f"There is no theme '{name}'; there are {', '.join(THEMES)}.")
    return THEMES[name]
