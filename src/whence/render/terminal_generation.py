"""Generated text for a terminal, as text of rich: words with their sources, or in colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from rich.table import Table
from rich.text import Text

from whence.errors import WhenceError
from whence.layout.grouping import Grouping
from whence.render.generation import GenerationView, make_view
from whence.render.shades import LEVELS
from whence.render.terminal import style_share

if TYPE_CHECKING:
    from whence.explanation import Generation

# The longest name of a sentence in a table.
_LONGEST = 40


def format_sources(generation: Generation, sample: int = 0, by: Grouping = "word") -> Table:
    """A table of generated words: each with its probability and its three highest sources."""
    view = make_view(generation, sample, by)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column()
    for row in view.rows:
        sources = Text("← ")
        for source, share, level in row["top"]:
            sources.append(_shorten(source), style_share(level / LEVELS))
            sources.append(f" {share}   ")
        table.add_row(
            Text(_shorten(row["name"]), "bold"), Text(row["percent"], justify="right"), sources
        )
    return table


def format_word(
    generation: Generation, sample: int = 0, by: Grouping = "word", word: int = 0
) -> Text:
    """The whole text in colours of what one generated word came from.

    Raises:
        WhenceError: There is no such word.
    """
    view = make_view(generation, sample, by)
    if not 0 <= word < len(view.rows):
        raise WhenceError(
            f"There is no generated word {word}; they are counted from 0 to {len(view.rows) - 1}."
        )
    row = view.rows[word]
    text = Text.assemble((row["name"], "bold"), f"  {row['percent']}".rstrip(), "\n")
    return text.append(_color_text(view, word))


def _color_text(view: GenerationView, word: int) -> Text:
    text, levels = Text(), view.rows[word]["levels"]
    for piece in view.pieces:
        text.append(piece.gap)
        if piece.row == word:
            text.append(piece.text, Style(reverse=True, bold=True))
            continue
        level = 0 if piece.column is None else levels[piece.column]
        text.append(piece.text, style_share(level / LEVELS))
    return text


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1].rstrip() + "…"
