"""Coloured words of texts as HTML: a whole page, or a fragment to stand in another."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from whence._util.text import to_printable
from whence.render.colors import get_theme
from whence.render.compared import list_compared_words, list_shown_fits
from whence.render.sentences import describe_evidence
from whence.render.templates import render_template
from whence.render.words import Word, has_negative_scores, list_class_words, list_words

if TYPE_CHECKING:
    from whence.explanation import ExplainedClass, Explanation, Fit

# The longest heading, in letters.
_TITLE = 90


def format_text_page(
    explanation: Explanation, *, title: str | None = None, theme: str = "auto"
) -> str:
    """A page of all samples and classes that needs nothing outside itself.

    Args:
        explanation: Of texts.
        title: Its heading; the beginning of the text, or the number of texts, if left out.
        theme: "light", "dark", or "auto" for what the reader's system prefers.

    Raises:
        WhenceError: The explanation is of images, or there is no such theme.
    """
    if theme != "auto":
        get_theme(theme)
    page = render_template(
        "render/templates/text_page.html.j2",
        title=title or title_texts(explanation),
        theme=theme,
        samples=[_list_shown(explanation, n) for n in range(len(explanation))],
        signed=has_negative_scores(explanation),
        provenance=explanation.provenance,
        note=". ".join(explanation.notes),
    )
    return str(page)


def format_texts_html(explanation: Explanation, most: int = 16) -> str:
    """A fragment of all samples and classes with their style, to stand in a notebook."""
    total = len(explanation)
    fragment = render_template(
        "render/templates/notebook.html.j2",
        samples=[_list_shown(explanation, sample) for sample in range(min(total, most))],
        signed=has_negative_scores(explanation),
        total=total,
        provenance=explanation.provenance,
        note=". ".join(explanation.notes),
    )
    return str(fragment)


_ShownClass = tuple["ExplainedClass", list[Word], str, list[Word]]


def _list_shown(explanation: Explanation, sample: int) -> tuple[list[_ShownClass], list[Fit], int]:
    """What a page shows of a text.

    Returns:
        The classes, each with its words, where the evidence is, in a sentence, and the words of the
        text that it is compared with; how well such texts fit, and how many more there are.
    """
    shown = [
        (
            one,
            words,
            describe_evidence(explanation, sample, number),
            list_compared_words(explanation, sample, number),
        )
        for number, (one, words) in enumerate(list_class_words(explanation, sample))
    ]
    fits, more = list_shown_fits(explanation, sample)
    return (shown, fits, more) if len(fits) > len(shown) else (shown, [], 0)


def title_texts(explanation: Explanation) -> str:
    """A heading for texts: the beginning of the only one, or their number."""
    if len(explanation) != 1:
        return f"{len(explanation)} texts"
    if explanation.tokens is None:
        return f"{explanation.scores.shape[-1]} tokens"
    if explanation.tokens.contents:
        text = explanation.tokens.contents[0]
    else:
        words = list_words(explanation)
        text = "".join(word.text + " " * word.space for word in words)
    return to_printable(textwrap.shorten(text, _TITLE, placeholder=" …")) or "A text"


def format_text_html(explanation: Explanation, sample: int = 0, target: int = 0) -> str:
    """The coloured words of one sample and class, with their style, to stand in any page.

    Raises:
        WhenceError: The explanation is of images, or there is no such sample or class.
    """
    words = list_words(explanation, sample, target)
    return str(render_template("render/templates/text_fragment.html.j2", words=words))
