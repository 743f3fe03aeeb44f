"""Generated text as HTML in which one points at a word to see what it came from."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from whence._util.text import format_probability, percent, to_printable
from whence.layout.grouping import Grouping, TokenGroup
from whence.render.colors import Floats, get_theme
from whence.render.overlay import is_signed, scale_to_largest
from whence.render.shades import LEVELS
from whence.render.templates import render_template
from whence.render.text import title_texts
from whence.render.words import is_line_break, to_label

if TYPE_CHECKING:
    from whence.explanation import Generation, ScoreMatrix

# How many sources of a word are named.
_TOP = 3


@dataclass(frozen=True)
class WordSource:
    """Something that a word came from."""

    name: str
    share: str  # of all positive scores, as a percentage
    level: int  # its shade


@dataclass(frozen=True)
class Piece:
    """A part of the text: of the prompt, or generated."""

    gap: str  # what stands before it
    text: str
    column: int | None  # whose scores colour it
    row: int | None  # if it was generated
    name: str = ""  # of a passage
    special: bool = False  # whether it stands nowhere in the text


class RowData(TypedDict):
    """What is shown of one generated word."""

    name: str
    percent: str
    levels: list[int]  # of each column
    scores: list[str]
    top: list[tuple[str, str, int]]


@dataclass(frozen=True)
class GenerationView:
    """One sample, ready for a page."""

    pieces: list[Piece]
    rows: list[RowData]
    signed: bool
    totals: list[WordSource]  # of passages, over the whole output

    @property
    def data(self) -> list[dict[str, object]]:
        """What a page's script needs: of each row the columns that have a shade, and no others."""
        return [
            {
                "name": row["name"],
                "percent": row["percent"],
                "top": row["top"],
                "cells": [
                    (column, level, row["scores"][column])
                    for column, level in enumerate(row["levels"])
                    if level
                ],
            }
            for row in self.rows
        ]


def format_generation_page(
    generation: Generation,
    *,
    by: Grouping = "word",
    title: str | None = None,
    theme: str = "auto",
) -> str:
    """A page of all samples that needs nothing outside itself.

    Pointing at a generated word, touching it or moving to it by the arrow keys colours the text
    that it came from.

    Args:
        generation: What to show.
        by: As for `Generation.matrix`.
        title: Its heading; the beginning of the text if left out.
        theme: "light", "dark", or "auto" for what the reader's system prefers.

    Raises:
        WhenceError: There is no such grouping or theme.
    """
    if theme != "auto":
        get_theme(theme)
    page = render_template(
        "render/templates/generation_page.html.j2",
        title=title or title_texts(generation),
        theme=theme,
        views=[make_view(generation, sample, by) for sample in range(len(generation))],
        provenance=generation.provenance,
        note=". ".join(generation.notes),
    )
    return str(page)


def format_generation_html(generation: Generation, by: Grouping = "word", most: int = 16) -> str:
    """A fragment with its style and script, to stand in a notebook or another page."""
    samples = range(min(len(generation), most))
    fragment = render_template(
        "render/templates/generation_fragment.html.j2",
        views=[make_view(generation, sample, by) for sample in samples],
        mark=uuid.uuid4().hex,  # several fragments may stand in one notebook
        total=len(generation),
        provenance=generation.provenance,
        note=". ".join(generation.notes),
    )
    return str(fragment)


def make_view(generation: Generation, sample: int, by: Grouping) -> GenerationView:
    """Lay out one sample: the pieces of its text, and what each generated word came from."""
    matrix = generation.matrix(sample, by)
    is_plain = isinstance(by, str)
    texts = generation.tokens.contents if generation.tokens is not None else []
    pieces = _cut_pieces(matrix, texts[sample] if texts else None, is_plain)
    total = matrix.values.sum(0)
    return GenerationView(
        pieces,
        [_describe_row(matrix, row) for row in range(len(matrix.rows))],
        is_signed(matrix.values),
        [] if is_plain else rank_sources(matrix.columns, total, len(matrix.columns)),
    )


def rank_sources(names: list[str], scores: Floats, most: int = _TOP) -> list[WordSource]:
    """The sources with the highest scores above 0, the highest first."""
    positive = np.clip(scores, 0, None)
    total, levels = positive.sum() or 1.0, to_levels(scores)
    order = [int(n) for n in np.argsort(-scores, kind="stable")[:most] if scores[n] > 0]
    return [
        WordSource(to_label(names[n]), percent(positive[n] / total, 0), levels[n]) for n in order
    ]


def to_levels(scores: Floats) -> list[int]:
    """The shade of each score, relative to the largest."""
    return [round(share * LEVELS) for share in scale_to_largest(scores).tolist()]


def _describe_row(matrix: ScoreMatrix, row: int) -> RowData:
    scores = matrix.values[row]
    return {
        "name": to_label(matrix.rows[row]),
        "percent": format_probability(matrix.probabilities[row]),
        "levels": to_levels(scores),
        "scores": [f"{score:.4g}" for score in scores.tolist()],
        "top": [(one.name, one.share, one.level) for one in rank_sources(matrix.columns, scores)],
    }


def _cut_pieces(matrix: ScoreMatrix, text: str | None, is_plain: bool) -> list[Piece]:
    """Cut the text at the groups of columns, and of rows where these are others."""
    rows = {group.tokens: row for row, group in enumerate(matrix.row_groups)}
    columns = {group.tokens: n for n, group in enumerate(matrix.column_groups)}
    groups = {group.tokens: group for group in (*matrix.column_groups, *matrix.row_groups)}
    listed = [group for group in groups.values() if is_plain or group.span is not None]
    listed.sort(key=lambda group: group.tokens[:1])
    pieces, end = list[Piece](), 0
    for group in listed:
        row, column = rows.get(group.tokens), columns.get(group.tokens)
        start, stop = group.span or (end, end)
        start = max(start, end)  # passages may overlap
        gap = (" " if pieces else "") if text is None else text[end:start]
        if not pieces:
            gap = gap.lstrip(" ")  # which some tokenizers put before the first word
        named = group.name if not is_plain and row is None else ""
        shown = text[start:stop] if text is not None and named else _show(group)
        is_special = text is not None and group.span is None
        name = to_printable(named)
        pieces.append(Piece(_clean(gap), _clean(shown), column, row, name, is_special))
        end = max(stop, end)
    return pieces


def _show(group: TokenGroup) -> str:
    """The text of a group; a line break gets a sign at which one can point."""
    return to_label(group.name) + group.name if is_line_break(group.name) else group.name


def _clean(text: str) -> str:
    """Text without control characters other than line breaks."""
    return "\n".join(map(to_printable, text.split("\n")))
