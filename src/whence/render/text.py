"""Coloured words: as HTML, as a page of its own, and for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whence.render.facts import ExplainedClass, explained_class, explained_classes, made_by
from whence.render.shades import TERMINAL_INK, shade_terminal_word
from whence.render.templates import render_template
from whence.render.themes import get_theme
from whence.render.words import Word, any_signed, words_of

if TYPE_CHECKING:
    from rich.text import Text

    from whence.explanation import Explanation

# On a terminal, words below this share are left plain, so that the text does not turn grey.
_PLAIN = 0.1


def text_page(explanation: Explanation, *, title: str = "whence", theme: str = "auto") -> str:
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
        signed=any_signed(explanation),
        provenance=made_by(explanation),
    )
    return str(page)


def text_html(explanation: Explanation, sample: int = 0, target: int = 0) -> str:
    """The coloured words of one sample and class, with their style, to stand in any page.

    Raises:
        WhenceError: The explanation is of images, or there is no such sample or class.
    """
    words = words_of(explanation, sample, target)
    return str(render_template("render/templates/text_fragment.html.j2", words=words))


def list_class_words(
    explanation: Explanation, sample: int
) -> list[tuple[ExplainedClass, list[Word]]]:
    """The explained classes of a text, each with the words and their scores."""
    classes = explained_classes(explanation, sample)
    return [(one, words_of(explanation, sample, target)) for target, one in enumerate(classes)]


def terminal_text(explanation: Explanation, sample: int = 0, target: int = 0) -> Text:
    """The coloured words of one sample and class for a terminal; the strongest are bold.

    Raises:
        WhenceError: The explanation is of images, or there is no such sample or class.
    """
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    ink = Color.from_rgb(*map(int, TERMINAL_INK))
    text = Text()
    for word in words_of(explanation, sample, target):
        ground = Color.from_rgb(*map(int, shade_terminal_word(word.share)))
        # Bold tells where there is no colour.
        style = Style(color=ink, bgcolor=ground, bold=abs(word.share) >= 0.5)
        text.append(word.text, style if abs(word.share) >= _PLAIN else None)
        text.append(" " if word.space else "")
    return text


def terminal_heading(explanation: Explanation, sample: int, target: int) -> Text:
    """The name of an explained class and its probability."""
    from rich.text import Text

    one = explained_class(explanation, sample, target)
    return Text.assemble((one.name, "bold"), f"  {one.percent}".rstrip())
