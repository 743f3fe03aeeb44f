"""A figure of an explained photo: the original beside one panel for each class."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil, sqrt
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

from whence._util.text import to_printable
from whence.errors import WhenceError
from whence.render.colors import Colormap, Theme, get_colormap, get_theme
from whence.render.drawing import Figure, Picture, Rectangle, Shape, TextLine, measure_text, shorten
from whence.render.overlay import (
    blend_at_size,
    check_opacity,
    draw_ramp,
    fit_size,
    is_signed,
    resize,
    stretch_contrast,
    to_rgb,
)

if TYPE_CHECKING:
    from whence.explanation import Explanation

_MARGIN, _GAP = 24.0, 20.0
_CAPTION, _LEGEND = 34.0, 44.0
_TITLE, _LARGE, _SMALL = 22.0, 15.0, 12.0
# A picture has about the area of this square, whatever its shape.
_SIDE, _WIDEST, _TALLEST = 320.0, 640.0, 480.0
_NARROWEST_CELL, _WIDEST_PAGE = 200.0, 1400.0
# A photo is kept at most this large, so that a huge one does not fill the memory.
_MOST_PIXELS = 2560


def draw_figure(
    image: Image.Image,
    explanation: Explanation,
    sample: int = 0,
    *,
    theme: str = "light",
    colormap: str = "auto",
    opacity: float = 0.6,
    title: str | None = None,
) -> Figure:
    """Draw the original beside one panel for each explained class, with a legend.

    Each panel shows the scores of its class from the lowest to the highest; where there are any
    below 0, relative to the largest absolute one.

    Args:
        image: The photo, as the model saw it: with the same crop, at any resolution.
        explanation: Of images.
        sample: Which sample of the batch the photo is.
        theme: "light" or "dark".
        colormap: Any of `list_colormaps()`; "auto" suits the sign of the scores.
        opacity: Of the strongest colour, from 0 to 1.
        title: A line above.

    Raises:
        WhenceError: The explanation is not of images, or a setting is out of range.
    """
    grid = explanation.picture_grid
    if grid is None or len(explanation.grid or ()) > 2:
        raise WhenceError(
            "This explanation is of tokens, a signal or a video; a figure needs one of an image."
        )
    look, opacity = get_theme(theme), check_opacity(opacity)
    classes = explanation.classes(sample)
    colors = get_colormap(colormap, any(is_signed(one.scores) for one in classes))
    photo = _bound_size(image)
    width, height = _fit_picture(photo)
    panels = [_Panel("Original", "", None, Picture(0, 0, width, height, partial(resize, photo)))]
    for one in classes:
        scores = stretch_contrast(one.scores).reshape(grid)
        draw = partial(blend_at_size, photo, scores, colors, opacity)
        picture = Picture(0, 0, width, height, draw)
        panels.append(_Panel(one.name, one.percent, one.probability, picture))
    return _lay_out(panels, look, _Legend(colors, _format_origin(explanation)), title)


class _Panel(NamedTuple):
    name: str
    percent: str
    probability: float | None
    picture: Picture


class _Legend(NamedTuple):
    colors: Colormap
    origin: str


def _lay_out(panels: list[_Panel], look: Theme, legend: _Legend, title: str | None) -> Figure:
    picture = panels[0].picture
    cell = max(picture.width, _NARROWEST_CELL)
    columns = _count_columns(len(panels), cell)
    rows = ceil(len(panels) / columns)
    width = 2 * _MARGIN + columns * (cell + _GAP) - _GAP
    top = _MARGIN + (_TITLE + _GAP if title else 0)
    height = top + rows * (_CAPTION + picture.height + _GAP) + _LEGEND
    page = Figure(width, height, look.background)
    if title:
        room = width - 2 * _MARGIN
        line = shorten(to_printable(title), _TITLE, room)
        baseline = _MARGIN + 0.8 * _TITLE
        page.shapes.append(TextLine(_MARGIN, baseline, line, _TITLE, look.ink, room=room))
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        x = _MARGIN + column * (cell + _GAP)
        y = top + row * (_CAPTION + picture.height + _GAP)
        page.shapes += _draw_panel(panel, x, y, cell, look)
    page.shapes += _draw_legend(legend, height - _LEGEND, width, look)
    return page


def _draw_panel(panel: _Panel, x: float, y: float, cell: float, look: Theme) -> list[Shape]:
    """Name and probability, a bar as long as the probability, and the picture in the middle."""
    baseline, bar = y + 16, y + _CAPTION - 10
    room = cell - (measure_text(panel.percent, _LARGE) + 12 if panel.percent else 0)
    name = shorten(panel.name, _LARGE, room)
    shapes: list[Shape] = [TextLine(x, baseline, name, _LARGE, look.ink, room=room)]
    if panel.probability is not None:
        shapes += [
            TextLine(x + cell, baseline, panel.percent, _LARGE, look.muted, right=True),
            Rectangle(x, bar, cell, 3, look.track),
            Rectangle(x, bar, cell * panel.probability, 3, look.bar),
        ]
    left = x + (cell - panel.picture.width) / 2
    picture = replace(panel.picture, x=left, y=y + _CAPTION, description=panel.name)
    # A hairline keeps a white photo apart from a white page.
    frame = (picture.x - 1, picture.y - 1, picture.width + 2, picture.height + 2)
    return [*shapes, Rectangle(*frame, look.track), picture]


def _draw_legend(legend: _Legend, y: float, width: float, look: Theme) -> list[Shape]:
    """A colour bar with its ends named, and the method and version."""
    diverging = legend.colors.diverging
    low, high = ("- against", "+ for") if diverging else ("low", "high")
    baseline, bar = y + 14, _SIDE / 2
    left = _MARGIN + measure_text(low, _SMALL) + 8
    right = left + bar + 8
    shapes: list[Shape] = [
        TextLine(_MARGIN, baseline, low, _SMALL, look.muted),
        Picture(left, y + 4, bar, 12, partial(draw_ramp, legend.colors), f"{low} to {high}"),
        TextLine(right, baseline, high, _SMALL, look.muted),
    ]
    if diverging:
        zero = left + bar / 2 - measure_text("0", _SMALL - 2) / 2
        shapes.append(TextLine(zero, baseline + 14, "0", _SMALL - 2, look.muted))
    room = width - _MARGIN - right - measure_text(high, _SMALL) - _GAP
    if measure_text(legend.origin, _SMALL) <= room:
        right = width - _MARGIN
        shapes.append(TextLine(right, baseline, legend.origin, _SMALL, look.muted, right=True))
    return shapes


def _count_columns(panels: int, cell: float) -> int:
    """As many columns as the page is wide, evened out over the rows."""
    most = max(2, int((_WIDEST_PAGE + _GAP) / (cell + _GAP)))
    return ceil(panels / ceil(panels / most))


def _fit_picture(photo: Image.Image) -> tuple[float, float]:
    """Width and height on the page: the photo's shape, and much the same area for every shape."""
    shape = photo.width / photo.height
    width = min(_SIDE * sqrt(shape), _WIDEST, _TALLEST * shape)
    return max(1.0, float(round(width))), max(1.0, float(round(width / shape)))


def _bound_size(image: Image.Image) -> Image.Image:
    """The photo as RGB, shrunk before anything else if it is huge."""
    if isinstance(image, Image.Image) and image.mode in ("L", "RGB") and 0 not in image.size:
        image = _shrink(image)
    return _shrink(to_rgb(image))


def _shrink(image: Image.Image) -> Image.Image:
    if max(image.size) <= _MOST_PIXELS:
        return image
    size = fit_size((image.height, image.width), _MOST_PIXELS)
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)


def _format_origin(explanation: Explanation) -> str:
    """The method and the version in one line."""
    facts = dict(explanation.provenance)
    version = "whence " + facts["whence"] if "whence" in facts else ""
    method = facts.get("method", "")
    # The library's own method has its name.
    parts = ["" if method == "whence" and version else method, version]
    return " · ".join(part for part in parts if part)
