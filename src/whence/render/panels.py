"""Panels of a figure: pictures under their names, side by side or in a grid, with a legend."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from whence._util.text import to_printable
from whence.render.colors import Colormap, Theme, to_hex
from whence.render.drawing import (
    Figure,
    Picture,
    Rectangle,
    Shape,
    TextLine,
    measure_text,
    shorten,
    wrap_text,
)
from whence.render.overlay import draw_ramp
from whence.render.shades import shade_word

if TYPE_CHECKING:
    from whence.explanation import ExplainedClass, Explanation

MARGIN, GAP = 24.0, 20.0
CAPTION = 34.0
TITLE, LARGE, SMALL = 22.0, 15.0, 12.0
_ENDS = 18.0  # the height of what stands below a picture
_RAMP, _STEPS = 160.0, 13
_NARROWEST_CELL, _WIDEST_PAGE = 200.0, 1400.0
# Between a picture and what is drawn below it.
_ABOVE_WORDS = 12.0


@dataclass(frozen=True)
class Caption:
    """What stands above a picture or a text."""

    name: str
    percent: str = ""
    probability: float | None = None  # which a bar shows
    note: str = ""  # beside the name, in place of a probability

    @classmethod
    def from_class(cls, explained: ExplainedClass) -> Caption:
        """The caption of a class: its name and its probability."""
        return cls(explained.name, explained.percent, explained.probability)


@dataclass(frozen=True)
class Panel:
    """A picture under its caption."""

    caption: Caption
    picture: Picture  # wherever it lies
    ends: tuple[str, str] = ("", "")  # what stands below its left and its right end


@dataclass(frozen=True)
class WordColors:
    """The colours of words on a page, as a `Colormap` has those of maps."""

    theme: str
    diverging: bool


@dataclass(frozen=True)
class Legend:
    """What the colours mean, and where the figure comes from."""

    colors: Sequence[Colormap | WordColors]  # all that the figure has
    note: str
    origin: str


def lay_out_panels(
    panels: list[Panel],
    look: Theme,
    legend: Legend,
    title: str | None,
    columns: int | None = None,
    below: Sequence[tuple[list[Shape], float]] = (),
) -> Figure:
    """Lay panels of one size out in rows, under a title and above a legend.

    Args:
        panels: Pictures with their captions.
        look: The theme.
        legend: What stands below all.
        title: What stands above all.
        columns: How many stand beside each other; as many as the page is wide if left out.
        below: For each panel, what is drawn below its picture, from (0, 0) on, and its height.
    """
    picture, cell = panels[0].picture, measure_cell(panels[0].picture)
    columns = columns or _count_columns(len(panels), cell)
    rows = ceil(len(panels) / columns)
    width = 2 * MARGIN + columns * (cell + GAP) - GAP
    top = MARGIN + (TITLE + GAP if title else 0)
    legend_shapes, legend_height = draw_legend(legend, width, look)
    ends = _ENDS if any(panels[0].ends) else 0.0
    tallest = max((height + _ABOVE_WORDS for _, height in below if height), default=0.0)
    step = CAPTION + picture.height + ends + tallest + GAP
    height = top + rows * step
    page = Figure(width, height + legend_height, look.background)
    page.shapes += draw_title(title, width, look)
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        x = MARGIN + column * (cell + GAP)
        y = top + row * step
        page.shapes += draw_panel(panel, x, y, cell, look)
        if below:
            under = y + CAPTION + picture.height + ends + _ABOVE_WORDS
            page.shapes += move(below[number][0], x, under)
    page.shapes += move(legend_shapes, 0, height)
    return page


def measure_cell(picture: Picture) -> float:
    """The width that a panel of a picture takes."""
    return max(picture.width, _NARROWEST_CELL)


def draw_title(title: str | None, width: float, look: Theme) -> list[Shape]:
    """A line above all; nothing without a title."""
    if not title:
        return []
    room = width - 2 * MARGIN
    line = shorten(to_printable(title), TITLE, room)
    return [TextLine(MARGIN, MARGIN + 0.8 * TITLE, line, TITLE, look.ink, room=room)]


def draw_panel(panel: Panel, x: float, y: float, cell: float, look: Theme) -> list[Shape]:
    """The caption, and the picture in the middle below it."""
    left = x + (cell - panel.picture.width) / 2
    description = panel.picture.description or panel.caption.name
    picture = replace(panel.picture, x=left, y=y + CAPTION, description=description)
    # A hairline keeps a white photo apart from a white page.
    frame = (picture.x - 1, picture.y - 1, picture.width + 2, picture.height + 2)
    caption = draw_caption(panel.caption, x, y, cell, look)
    start, stop = panel.ends
    line, end = picture.y + picture.height + 15, picture.x + picture.width
    ends: list[Shape] = []
    if start or stop:
        ends.append(TextLine(picture.x, line, start, SMALL, look.muted))
        ends.append(TextLine(end, line, stop, SMALL, look.muted, right=True))
    return [*caption, Rectangle(*frame, look.track), picture, *ends]


def draw_caption(caption: Caption, x: float, y: float, cell: float, look: Theme) -> list[Shape]:
    """Name and probability, and a bar as long as the probability."""
    baseline, bar = y + 16, y + CAPTION - 10
    room = cell - (measure_text(caption.percent, LARGE) + 12 if caption.percent else 0)
    name = shorten(caption.name, LARGE, room)
    shapes: list[Shape] = []
    if name:
        shapes.append(TextLine(x, baseline, name, LARGE, look.ink, room=room))
    if caption.percent:
        shapes.append(TextLine(x + cell, baseline, caption.percent, LARGE, look.muted, right=True))
    if caption.probability is not None:
        shapes += [
            Rectangle(x, bar, cell, 3, look.track),
            Rectangle(x, bar, cell * caption.probability, 3, look.bar),
        ]
    elif caption.note:
        after = x + measure_text(name, LARGE) + 10
        note = shorten(caption.note, SMALL, max(0.0, x + cell - after))
        shapes.append(TextLine(after, baseline, note, SMALL, look.muted))
    return shapes


def draw_legend(legend: Legend, width: float, look: Theme) -> tuple[list[Shape], float]:
    """Colour bars with their ends named, what they are relative to, and where all comes from.

    Returns:
        Shapes from y = 0 on, and their height with the page's margin.
    """
    shapes, x, y = list[Shape](), MARGIN, 14.0
    for colors in legend.colors:
        shapes += _draw_scale(colors, x, look)
        x = _find_end(shapes[-1]) + GAP
    below = 44.0 if any(one.diverging for one in legend.colors) else 38.0
    if measure_text(legend.note, SMALL) <= width - MARGIN - x:
        shapes.append(TextLine(x, y, legend.note, SMALL, look.muted, room=width - MARGIN - x))
        lines = wrap_text(legend.origin, SMALL, width - 2 * MARGIN)
    else:
        room = width - 2 * MARGIN
        lines = [line for t in (legend.note, legend.origin) for line in wrap_text(t, SMALL, room)]
    for number, line in enumerate(lines):
        y, room = below + 18 * number, width - 2 * MARGIN
        shapes.append(TextLine(MARGIN, y, line, SMALL, look.muted, room=room))
    return shapes, below + 18 * max(0, len(lines) - 1) + MARGIN


def move(shapes: Sequence[Shape], x: float, y: float) -> list[Shape]:
    """The shapes, further to the right and lower by so much."""
    return [replace(shape, x=shape.x + x, y=shape.y + y) for shape in shapes]


def describe_scale(
    strengths: Sequence[float],
    signs: Collection[bool],
    what: str = "map",
    paler: str = "a less probable class",
) -> str:
    """What the colours are relative to, in a few words.

    Args:
        strengths: Of all maps.
        signs: Whether colours diverge: of all colour maps that there are.
        what: What has colours.
        paler: What has paler ones.
    """
    if not any(signs):
        scale = f"from the lowest to the highest score of each {what}"
    elif all(signs):
        scale = f"relative to the strongest score of each {what}"
    else:
        scale = f"each {what} has its own scale"
    faint = f"; paler: {paler}" if min(strengths, default=1.0) < 0.95 else ""
    return f"{scale}{faint}"


def format_origin(explanations: Sequence[Explanation]) -> str:
    """The method, unless there are several, the models and the version in one line."""
    first = explanations[0]
    method = (first.class_note.replace(" is ", ", ", 1) or first.method) * (len(explanations) == 1)
    models = ", ".join(dict.fromkeys(one.model for one in explanations if one.model))
    facts = {"method: ": method, "model: ": models, "whence ": first.version}
    return " · ".join(to_printable(name + value) for name, value in facts.items() if value)


def _draw_scale(colors: Colormap | WordColors, x: float, look: Theme) -> list[Shape]:
    """A colour bar with its ends named; the name of the upper end is the last shape."""
    low, high = ("- against", "+ for") if colors.diverging else ("low", "high")
    left = x + measure_text(low, SMALL) + 8
    shapes: list[Shape] = [TextLine(x, 14, low, SMALL, look.muted)]
    if isinstance(colors, Colormap):
        shapes.append(Picture(left, 4, _RAMP, 12, partial(draw_ramp, colors), f"{low} to {high}"))
    else:
        shapes += _draw_shades(colors, left, look)
    if colors.diverging:
        zero = left + _RAMP / 2 - measure_text("0", SMALL - 2) / 2
        shapes.append(TextLine(zero, 27, "0", SMALL - 2, look.muted))
    return [*shapes, TextLine(left + _RAMP + 8, 14, high, SMALL, look.muted)]


def _draw_shades(colors: WordColors, left: float, look: Theme) -> list[Shape]:
    width = _RAMP / _STEPS
    shapes: list[Shape] = [Rectangle(left - 1, 3, _RAMP + 2, 14, look.track)]
    for number, share in enumerate(np.linspace(-1 if colors.diverging else 0, 1, _STEPS).tolist()):
        color = to_hex(shade_word(share, colors.theme))
        shapes.append(Rectangle(left + number * width, 4, width, 12, color))
    return shapes


def _find_end(shape: Shape) -> float:
    return shape.x + (measure_text(shape.text, SMALL) if isinstance(shape, TextLine) else 0)


def _count_columns(panels: int, cell: float) -> int:
    """As many columns as the page is wide, evened out over the rows."""
    most = max(2, int((_WIDEST_PAGE + GAP) / (cell + GAP)))
    return ceil(panels / ceil(panels / most))
