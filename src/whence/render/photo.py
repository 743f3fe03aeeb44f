"""Photos beside their maps as HTML: a whole page, or a fragment to stand in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from markupsafe import Markup

from whence._util.text import data_uri, to_printable
from whence.explanation.media import Video
from whence.explanation.summary import name_kind
from whence.render.animation import encode_gif
from whence.render.colors import Colormap, get_theme
from whence.render.compared import list_compared_words, list_shown_fits
from whence.render.drawing import encode_uri
from whence.render.maps import describe_axes, list_maps, make_painter
from whence.render.media import describe_time
from whence.render.overlay import draw_ramp, fit_size
from whence.render.panels import describe_scale
from whence.render.sentences import describe_evidence
from whence.render.templates import render_macro, render_template

if TYPE_CHECKING:
    from whence.explanation import ExplainedClass, Explanation, Fit
    from whence.render.words import Word

# The longer side of a picture on a page and in a notebook, in pixels.
_PAGE, _NOTEBOOK = 640, 400


@dataclass(frozen=True)
class ShownMap:
    """The map of a class as a page shows it."""

    explained: ExplainedClass
    address: str  # a data URI
    description: str
    evidence: str  # where the evidence is, in a sentence; empty if that is not clear
    words: Sequence[Word] = ()  # of the text that the photo is compared with


@dataclass(frozen=True)
class ShownPhoto:
    """One photo with its maps, ready for a page."""

    maps: Sequence[ShownMap]
    size: tuple[int, int]  # of every picture, in pixels
    colors: Colormap
    faintest: float  # strength of the palest map
    photo: str = ""  # a data URI; empty if the photo is not known
    photo_name: str = ""
    is_wide: bool = False  # whether pictures stand below each other
    ends: tuple[str, str] = ("", "")  # of the axis of time
    animation: str = ""  # of a video, a data URI
    fits: Sequence[Fit] = ()  # how well texts fit the photo
    more_fits: int = 0  # how many texts are not named


@dataclass(frozen=True)
class Scale:
    """A colour bar of a page's legend."""

    address: str
    low: str
    high: str


def format_photo_page(
    explanation: Explanation, *, title: str | None = None, theme: str = "auto", whole: bool = False
) -> str:
    """A page of all samples and classes that needs nothing outside itself.

    Args:
        explanation: Of photos.
        title: Its heading; the first class, or the number of photos, if left out.
        theme: "light", "dark", or "auto" for what the reader's system prefers.
        whole: Whether maps lie on the whole photo; what the model did not see is grey.

    Raises:
        WhenceError: The explanation is not of photos, or there is no such theme.
    """
    if theme != "auto":
        get_theme(theme)
    samples = range(len(explanation))
    views = [show_photo(explanation, n, _PAGE, whole) for n in samples]
    if explanation.media and isinstance(explanation.media[0], Video):
        moving = [data_uri(encode_gif(explanation, n), "image/gif") for n in samples]
        views = [replace(v, animation=one) for v, one in zip(views, moving, strict=True)]
    page = render_template(
        "render/templates/photo_page.html.j2",
        title=title or _choose_title(explanation),
        theme=theme,
        noun=name_kind(explanation).capitalize(),
        views=views,
        legend=render_map_legend(
            [view.colors for view in views],
            [view.faintest for view in views],
            describe_axes(explanation),
        ),
        provenance=explanation.provenance,
        note=". ".join(explanation.notes),
    )
    return str(page)


def format_photo_html(explanation: Explanation, most: int = 16) -> str:
    """A fragment with its style, to stand in a notebook or another page."""
    views = [show_photo(explanation, n, _NOTEBOOK) for n in range(min(len(explanation), most))]
    fragment = render_template(
        "render/templates/photo_fragment.html.j2",
        views=views,
        legend=render_map_legend(
            [view.colors for view in views],
            [view.faintest for view in views],
            describe_axes(explanation),
        ),
        total=len(explanation),
        provenance=explanation.provenance,
        note=". ".join(explanation.notes),
    )
    return str(fragment)


def show_photo(explanation: Explanation, sample: int, side: int, whole: bool = False) -> ShownPhoto:
    """Draw the photo of a sample and its maps, whose longer side has so many pixels."""
    maps = list_maps(explanation, sample)
    whole = whole and explanation.photos is not None
    painter = make_painter(explanation, sample, maps, whole=whole)
    size = fit_size(
        (1000, round(1000 * painter.ratio)), round(side * (1.5 if painter.is_wide else 1))
    )
    shown = [
        ShownMap(
            one.explained,
            encode_uri(painter.draw(one, size), is_photo=True),
            f"Map of {explanation.method or 'the scores'} for {one.explained.name}",
            describe_evidence(explanation, sample, number),
            list_compared_words(explanation, sample, number),
        )
        for number, one in enumerate(maps)
    ]
    faintest = min(one.strength for one in maps)
    view = ShownPhoto(shown, size, painter.colors, faintest, is_wide=painter.is_wide)
    if not painter.has_photo:
        return view
    fits, more = list_shown_fits(explanation, sample)
    return replace(
        view,
        photo=encode_uri(painter.draw_photo(size), is_photo=True),
        photo_name=painter.photo_name,
        ends=describe_time(painter.media),
        fits=fits,
        more_fits=more,
    )


def render_map_legend(
    colors: Iterable[Colormap], strengths: Iterable[float], axes: str = ""
) -> Markup:
    """What the colours of maps mean: a bar of each colour map, and what colours are relative to.

    Args:
        colors: The colour maps of all maps on the page; those that repeat count once.
        strengths: The strengths of all maps, as `list_strengths` gives them.
        axes: How maps are read, as `describe_axes` says it.
    """
    bars = list(dict.fromkeys(colors))
    scales = [
        Scale(
            encode_uri(draw_ramp(one, (160, 12)), is_photo=False),
            *(("- against", "+ for") if one.diverging else ("low", "high")),
        )
        for one in bars
    ]
    note = describe_scale(list(strengths), [one.diverging for one in bars]) + axes
    return render_macro("render/templates/photos.html.j2", "legend", scales, note)


def _choose_title(explanation: Explanation) -> str:
    if len(explanation) != 1:
        return f"{len(explanation)} {name_kind(explanation)}s"
    first = explanation.get_class()
    return to_printable(f"{first.name} {first.percent}".rstrip())
