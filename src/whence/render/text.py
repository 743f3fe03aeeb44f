"""Coloured words of texts as HTML: a whole page, or a fragment to stand in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whence.render.colors import get_theme
from whence.render.templates import render_template
from whence.render.words import has_negative_scores, list_class_words, list_words

if TYPE_CHECKING:
    from whence.explanation import Explanation


def format_text_page(
    explanation: Explanation, *, title: str = "whence", theme: str = "auto"
) -> str:
    """A page of all samples and classes that needs nothing outside itself.

    Args:
        explanation: Of texts.
        title: Its heading.
        theme: "light", "dark", or "auto" for what the reader's system prefers.

    Raises:
        WhenceError: The explanation is of images, or there is no such theme.
    """
    if theme != "auto":
        get_theme(theme)
    page = render_template(
        "render/templates/text_page.html.j2",
        title=title,
        theme=theme,
        samples=[list_class_words(explanation, n) for n in range(len(explanation.scores))],
        signed=has_negative_scores(explanation),
        provenance=explanation.provenance,
    )
    return str(page)


def format_text_html(explanation: Explanation, sample: int = 0, target: int = 0) -> str:
    """The coloured words of one sample and class, with their style, to stand in any page.

    Raises:
        WhenceError: The explanation is of images, or there is no such sample or class.
    """
    words = list_words(explanation, sample, target)
    return str(render_template("render/templates/text_fragment.html.j2", words=words))
