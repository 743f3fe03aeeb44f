"""Coloured words: as HTML, as a page of its own, and for a terminal."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from whence.render.facts import explained_class, explained_classes, made_by, printable
from whence.render.styles import level_class, page_style, words_style
from whence.render.themes import get_theme
from whence.render.words import LEVELS, TERMINAL_INK, Word, any_signed, terminal_shade, words_of

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
    samples = len(explanation.scores)
    sections = [
        f"<section>\n{_heading(sample) if samples > 1 else ''}{_sample(explanation, sample)}"
        f"</section>"
        for sample in range(samples)
    ]
    heading = escape(printable(title))
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{heading}</title>",
        f"<style>\n{page_style(theme)}{words_style(theme)}</style>",
        "</head>",
        '<body><main class="whence">',
        f'<h1 dir="auto">{heading}</h1>',
        words_legend(any_signed(explanation)),
        *sections,
        _footer(explanation),
        "</main></body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def text_html(explanation: Explanation, sample: int = 0, target: int = 0) -> str:
    """The coloured words of one sample and class, with their style, to stand in any page.

    Raises:
        WhenceError: The explanation is of images, or there is no such sample or class.
    """
    words = _paragraph(explanation, sample, target)
    return f'<div class="whence"><style>\n{words_style("auto")}</style>\n{words}</div>'


def notebook_html(explanation: Explanation, samples: range) -> str:
    """Some samples with all their classes and a legend, to stand in a notebook."""
    return "\n".join(
        [
            f'<div class="whence"><style>\n{words_style("auto")}</style>',
            *(_sample(explanation, sample) for sample in samples),
            words_legend(any_signed(explanation)),
            "</div>",
        ]
    )


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
        ground = Color.from_rgb(*map(int, terminal_shade(word.share)))
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


def _sample(explanation: Explanation, sample: int) -> str:
    parts = []
    for target, one in enumerate(explained_classes(explanation, sample)):
        percent = f' <span class="percent">{escape(one.percent)}</span>' if one.percent else ""
        parts.append(f'<h3><bdi dir="auto">{escape(one.name)}</bdi>{percent}</h3>')
        if one.probability is not None:
            parts.append(
                f'<div class="bar"><div style="width:{100 * one.probability:.2f}%"></div></div>'
            )
        parts.append(_paragraph(explanation, sample, target))
    return "\n".join(parts) + "\n"


def _heading(sample: int) -> str:
    return f"<h2>Text {sample + 1}</h2>\n"


def words_html(explanation: Explanation, sample: int = 0, target: int = 0) -> str:
    """The coloured words alone, short: without a style, and without what shows on hovering."""
    words = words_of(explanation, sample, target)
    return "".join(
        f'<span class="{level_class(word.level)}">{escape(word.text)}</span>{_space(word)}'
        if word.level
        else f"{escape(word.text)}{_space(word)}"
        for word in words
    )


def _paragraph(explanation: Explanation, sample: int, target: int) -> str:
    words = words_of(explanation, sample, target)
    inside = "".join(map(_span, words)) if words else '<span class="note">no words</span>'
    return f'<p class="words" dir="auto">{inside}</p>'


def _span(word: Word) -> str:
    hover = f"{word.share:+.2f} of the largest (score {word.score:.4g})"
    name = level_class(word.level)
    return f'<span class="{name}" title="{hover}">{escape(word.text)}</span>{_space(word)}'


def _space(word: Word) -> str:
    return " " if word.space else ""


def words_legend(signed: bool) -> str:
    """What the colours of words mean."""
    levels = range(-LEVELS if signed else 0, LEVELS + 1, 2)
    cells = "".join(f'<i class="{level_class(level)}"></i>' for level in levels)
    low, high = ("&minus; against", "+ for") if signed else ("low", "high")
    note = "Relative to the strongest word of each text and class."
    return (
        f'<p class="legend"><span>{low}</span><span class="ramp" aria-hidden="true">{cells}</span>'
        f'<span>{high}</span> <span class="note">{note}</span></p>'
    )


def _footer(explanation: Explanation) -> str:
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in made_by(explanation)
    )
    return f"<footer><dl>{facts}</dl></footer>"
