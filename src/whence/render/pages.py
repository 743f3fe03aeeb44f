"""An explanation of any kind as HTML: a page that needs nothing outside itself, or a fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whence.explanation import Generation
from whence.layout.grouping import Grouping
from whence.render.generation import format_generation_html, format_generation_page
from whence.render.photo import format_photo_html, format_photo_page
from whence.render.text import format_text_page, format_texts_html

if TYPE_CHECKING:
    from whence.explanation import Explanation

# A notebook shows this many samples; more would drown what is around it.
_MOST_SAMPLES = 16


def format_page(
    explanation: Explanation, *, by: Grouping = "word", title: str | None = None
) -> str:
    """A page of all samples: photos beside their maps, or coloured words.

    Args:
        explanation: What to show.
        by: Of generated text, as for `Generation.matrix`.
        title: Its heading; the text, or the first class of a photo, if left out.
    """
    if isinstance(explanation, Generation):
        return format_generation_page(explanation, by=by, title=title)
    if explanation.grid is not None:
        return format_photo_page(explanation, title=title)
    return format_text_page(explanation, title=title)


def format_notebook_html(explanation: Explanation, by: Grouping = "word") -> str:
    """A fragment for a notebook, with at most 16 samples."""
    if isinstance(explanation, Generation):
        return format_generation_html(explanation, by, _MOST_SAMPLES)
    if explanation.grid is not None:
        return format_photo_html(explanation, _MOST_SAMPLES)
    return format_texts_html(explanation, _MOST_SAMPLES)
