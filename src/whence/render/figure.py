"""A figure of any explanation: a photo beside its maps, coloured words, or a table of scores."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PIL import Image

from whence.errors import WhenceError
from whence.explanation import Generation, PairExplanation
from whence.layout.grouping import Grouping
from whence.render.colors import Colormap, get_theme
from whence.render.compared import draw_fits, list_compared_words, list_shown_fits
from whence.render.drawing import Figure, Picture
from whence.render.maps import describe_axes, list_maps, make_painter
from whence.render.matrix import draw_matrix
from whence.render.media import describe_time
from whence.render.panels import (
    Caption,
    Legend,
    Panel,
    WordColors,
    describe_scale,
    format_origin,
    lay_out_panels,
    measure_cell,
)
from whence.render.word_figure import draw_words, lay_out_words

if TYPE_CHECKING:
    from whence.explanation import Explanation

# A picture has about the area of this square, whatever its shape.
_SIDE, _WIDEST, _TALLEST = 320.0, 640.0, 480.0
# Sounds and rows of frames are wider, and stand below each other.
_STRIP, _WIDEST_STRIP = 480.0, 960.0


def draw_figure(
    explanation: Explanation,
    sample: int = 0,
    *,
    image: Image.Image | None = None,
    whole: bool = False,
    outlines: bool = False,
    by: Grouping = "word",
    theme: str = "light",
    colormap: str = "auto",
    opacity: float = 0.6,
    title: str | None = None,
) -> Figure:
    """Draw one sample: a photo beside a map of each class, coloured words, or a table of scores.

    Args:
        explanation: Of photos or texts, or of generated text.
        sample: Which sample of the batch.
        image: The photo as the model saw it, where the explanation does not know it.
        whole: Whether maps lie on the whole photo; what the model did not see is grey.
        outlines: Whether to draw the outlines of each map's peak regions.
        by: Of generated text, the parts of the table, as for `Generation.matrix`.
        theme: "light" or "dark".
        colormap: Of maps, any of `list_colormaps()`; "auto" suits the sign of the scores.
        opacity: Of a map's strongest colour, from 0 to 1.
        title: A line above.

    Raises:
        WhenceError: There is no such sample, it cannot be drawn, or a setting is out of range.
    """
    if explanation.grid is None:
        if outlines:
            raise WhenceError("Outlines are for photos, and this explanation is of tokens.")
        if image is not None or whole:
            raise WhenceError("This explanation is of tokens; it cannot be laid over an image.")
        if isinstance(explanation, Generation):
            matrix, origin = explanation.matrix(sample, by), format_origin([explanation])
            return draw_matrix(matrix, theme=theme, title=title, origin=origin)
        return draw_words(explanation, sample, theme=theme, title=title)
    look, maps = get_theme(theme), list_maps(explanation, sample, outlines)
    options = {"image": image, "whole": whole, "colormap": colormap, "opacity": opacity}
    painter = make_painter(explanation, sample, maps, **options)  # type: ignore[arg-type]
    width, height = painter.fit(
        *((_STRIP, _WIDEST_STRIP) if painter.is_wide else (_SIDE, _WIDEST)), _TALLEST
    )
    ends = describe_time(painter.media)
    panels = []
    if painter.has_photo:
        picture = Picture(0, 0, width, height, painter.draw_photo, is_photo=True)
        panels.append(Panel(Caption(painter.photo_name), picture, ends))
    for one in maps:
        draw, name = partial(painter.draw, one), f"Map for {one.explained.name}"
        picture = Picture(0, 0, width, height, draw, name, is_photo=True)
        panels.append(Panel(Caption.from_class(one.explained), picture, ends))
    strengths = [one.strength for one in maps]
    note = describe_scale(strengths, [painter.colors.diverging]) + describe_axes(explanation)
    note += painter.note
    if any(one.regions for one in maps):
        note += "; outlined: what holds much of the evidence"
    elif outlines:
        note += "; no outlines: the evidence is spread out"
    colors: list[Colormap | WordColors] = [painter.colors]
    below = []
    if isinstance(explanation, PairExplanation):
        room = measure_cell(panels[0].picture)
        if painter.has_photo:
            below.append(draw_fits(*list_shown_fits(explanation, sample), room, look))
        listed = [list_compared_words(explanation, sample, number) for number in range(len(maps))]
        below += [lay_out_words(one, room, theme, look) if one else ([], 0.0) for one in listed]
        signed = any(word.score < 0 for words in listed for word in words)
        colors += [WordColors(theme, signed)] if any(listed) else []
    legend = Legend(colors, note, format_origin([explanation]))
    columns = 1 if painter.is_wide else None
    return lay_out_panels(panels, look, legend, title, columns=columns, below=below)
