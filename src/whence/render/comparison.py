"""A figure of several explanations of one input: methods below each other, classes side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from markupsafe import Markup
from PIL import Image

from whence.errors import WhenceError
from whence.explanation import Generation
from whence.render.colors import get_theme
from whence.render.drawing import Figure, Picture, Rectangle, TextLine, measure_text, shorten
from whence.render.maps import ClassMap, MapPainter, list_maps, make_painter
from whence.render.panels import (
    CAPTION,
    GAP,
    LARGE,
    MARGIN,
    SMALL,
    TITLE,
    Caption,
    Legend,
    Panel,
    describe_scale,
    draw_caption,
    draw_legend,
    draw_panel,
    draw_title,
    format_origin,
    lay_out_panels,
    move,
)
from whence.render.strengths import list_strengths
from whence.render.templates import render_template
from whence.render.text import title_texts
from whence.render.word_figure import lay_out_words, make_word_legend
from whence.render.words import list_words

if TYPE_CHECKING:
    from whence.explanation import Explanation

_SIDE, _WIDEST, _TALLEST = 240.0, 480.0, 360.0
# Sounds and rows of frames are wider.
_STRIP_SIDE, _WIDEST_STRIP = 400.0, 720.0
_TEXT_WIDTH = 900.0
# Room for the names of methods beside their words.
_NARROWEST_LABEL, _WIDEST_LABEL = 150.0, 240.0


def draw_comparison(
    explanations: Mapping[str, Explanation],
    sample: int = 0,
    *,
    notes: Mapping[str, str] | None = None,
    remark: str = "",
    image: Image.Image | None = None,
    whole: bool = False,
    outlines: bool = False,
    theme: str = "light",
    title: str | None = None,
) -> Figure:
    """Draw explanations of one input: a row for each, with a column for each class.

    Explanations of one class of a photo stand side by side.

    Args:
        explanations: By their names, all of the same photos or texts and classes.
        sample: Which sample of the batch.
        notes: A few words to stand beside a name.
        remark: What the notes mean, to stand below.
        image: As for `draw_figure`.
        whole: As for `draw_figure`.
        outlines: As for `draw_figure`.
        theme: "light" or "dark".
        title: A line above; for one class of a photo, that class if left out.

    Raises:
        WhenceError: They do not belong together, or cannot be drawn.
    """
    check_alike(explanations)
    notes = notes or {}
    labels = {
        name: Caption(name, note=" · ".join(filter(None, (notes.get(name), _note_class(one)))))
        for name, one in explanations.items()
    }
    if next(iter(explanations.values())).grid is None:
        return _draw_texts(explanations, labels, sample, theme, title, remark)
    maps = {name: list_maps(one, sample, outlines) for name, one in explanations.items()}
    painters = {
        name: make_painter(one, sample, maps[name], image=image, whole=whole)
        for name, one in explanations.items()
    }
    strengths = [one.strength for row in maps.values() for one in row]
    colors = list(dict.fromkeys(one.colors for one in painters.values()))
    note = describe_scale(strengths, [one.diverging for one in colors])
    note += next(iter(painters.values())).note
    origin = _format_origin(explanations, remark)
    legend = Legend(colors, note, origin)
    grid = _MapGrid(maps, painters, labels, legend)
    return grid.draw_line(theme, title) if grid.columns == 1 else grid.draw(theme, title)


def format_comparison_page(
    explanations: Mapping[str, Explanation], figures: Iterable[Figure], title: str | None = None
) -> str:
    """A page with figures, whose text is text, that needs nothing outside itself.

    Args:
        explanations: By their names.
        figures: Of their samples.
        title: Its heading; the text, or a few words on photos, if left out.
    """
    first = next(iter(explanations.values()))
    page = render_template(
        "render/templates/comparison_page.html.j2",
        title=title or (title_texts(first) if first.grid is None else "Methods side by side"),
        theme="light",
        # Our own figures escape what they write.
        figures=[Markup(figure.to_svg()) for figure in figures],
        settings={name: one.provenance for name, one in explanations.items()},
    )
    return str(page)


def check_alike(explanations: Mapping[str, Explanation]) -> None:
    """Refuse explanations that cannot stand in one figure.

    Raises:
        WhenceError: There are none, or they are of other inputs or classes.
    """
    if not explanations:
        raise WhenceError("There is nothing to compare: name at least one method.")
    if any(isinstance(one, Generation) for one in explanations.values()):
        raise WhenceError(
            "Explanations of generated text cannot be compared; plot them one by one."
        )
    first, *others = explanations.values()
    for one in others:
        alike = (one.grid is None) == (
            first.grid is None
        ) and one.target.shape == first.target.shape
        if not alike or one.target.tolist() != first.target.tolist():
            raise WhenceError("Only explanations of the same input and classes can be compared.")


class _MapGrid:
    """Maps of a photo by methods and classes."""

    def __init__(
        self,
        maps: Mapping[str, list[ClassMap]],
        painters: Mapping[str, MapPainter],
        labels: Mapping[str, Caption],
        legend: Legend,
    ) -> None:
        self.maps, self.painters, self.labels, self.legend = maps, painters, labels, legend
        self.first = next(iter(painters.values()))
        self.classes = [one.explained for one in next(iter(maps.values()))]
        self.columns = len(self.classes)
        widest = (_STRIP_SIDE, _WIDEST_STRIP) if self.first.is_wide else (_SIDE, _WIDEST)
        self.size = self.first.fit(*widest, _TALLEST)

    def draw_line(self, theme: str, title: str | None) -> Figure:
        """One class: the photo, and then each method's map beside the other."""
        (one,) = self.classes
        panels = [Panel(Caption(self.first.photo_name), photo) for photo in self._draw_photo()]
        panels += [Panel(self.labels[name], self._draw_map(name, 0)) for name in self.maps]
        heading, columns = f"{one.name} {one.percent}".rstrip(), 1 if self.first.is_wide else None
        return lay_out_panels(panels, get_theme(theme), self.legend, title or heading, columns)

    def draw(self, theme: str, title: str | None) -> Figure:
        """Several classes: the photo once, a row for each method and a column for each class."""
        look, (width, height) = get_theme(theme), self.size
        photos = self._draw_photo()
        columns = self.columns + len(photos)
        page_width = 2 * MARGIN + columns * (width + GAP) - GAP
        page = Figure(page_width, 0, look.background, draw_title(title, page_width, look))
        y = MARGIN + (TITLE + GAP if title else 0)
        lefts = [MARGIN + column * (width + GAP) for column in range(columns)]
        starts = lefts[len(photos) :]
        for left, one in zip(starts, self.classes, strict=True):
            page.shapes += draw_caption(Caption.from_class(one), left, y, width, look)
        y += CAPTION + 6
        for photo in photos:
            panel = Panel(Caption(self.first.photo_name), photo)
            page.shapes += draw_panel(panel, lefts[0], y, width, look)
        for name in self.maps:
            room = page_width - MARGIN - starts[0]
            page.shapes += draw_caption(self.labels[name], starts[0], y, room, look)
            for column, left in enumerate(starts):
                panel = Panel(Caption(""), self._draw_map(name, column))
                page.shapes += draw_panel(panel, left, y, width, look)
            y += CAPTION + height + GAP
        shapes, below = draw_legend(self.legend, page_width, look)
        page.shapes += move(shapes, 0, y)
        page.height = y + below
        return page

    def _draw_photo(self) -> list[Picture]:
        if not self.first.has_photo:
            return []
        return [Picture(0, 0, *self.size, self.first.draw_photo, is_photo=True)]

    def _draw_map(self, name: str, column: int) -> Picture:
        one = self.maps[name][column]
        draw = partial(self.painters[name].draw, one)
        return Picture(
            0, 0, *self.size, draw, f"Map of {name} for {one.explained.name}", is_photo=True
        )


def _draw_texts(
    explanations: Mapping[str, Explanation],
    labels: Mapping[str, Caption],
    sample: int,
    theme: str,
    title: str | None,
    remark: str,
) -> Figure:
    """A line for each method, under each class."""
    look, room = get_theme(theme), _TEXT_WIDTH - 2 * MARGIN
    page = Figure(_TEXT_WIDTH, 0, look.background, draw_title(title, _TEXT_WIDTH, look))
    y = MARGIN + (TITLE + GAP if title else 0)
    first = next(iter(explanations.values()))
    longest = max(measure_text(name, LARGE) for name in explanations) + 16
    label_width = min(max(longest, _NARROWEST_LABEL), _WIDEST_LABEL)
    for target, one in enumerate(first.classes(sample)):
        page.shapes += draw_caption(Caption.from_class(one), MARGIN, y, room, look)
        y += CAPTION
        for name, explanation in explanations.items():
            words = list_words(explanation, sample, target)
            shapes, height = lay_out_words(words, room - label_width, theme, look)
            label = shorten(name, LARGE, label_width - 12)
            page.shapes.append(
                TextLine(MARGIN, y + 17, label, LARGE, look.ink, room=label_width - 12)
            )
            note = shorten(labels[name].note, SMALL, label_width - 12)
            if note:
                page.shapes.append(TextLine(MARGIN, y + 32, note, SMALL, look.muted))
            page.shapes += move(shapes, MARGIN + label_width, y)
            y += max(height, 40 if note else 0) + 6
            page.shapes.append(Rectangle(MARGIN, y - 4, room, 1, look.track))
        y += GAP
    legend = make_word_legend(list(explanations.values()), list_strengths(first, sample), theme)
    legend = replace(legend, origin=_format_origin(explanations, remark))
    shapes, below = draw_legend(legend, _TEXT_WIDTH, look)
    page.shapes += move(shapes, 0, y)
    page.height = y + below
    return page


def _format_origin(explanations: Mapping[str, Explanation], remark: str) -> str:
    return " · ".join(filter(None, (format_origin(list(explanations.values())), remark)))


def _note_class(explanation: Explanation) -> str:
    return "the same for every class" if explanation.class_note else ""
