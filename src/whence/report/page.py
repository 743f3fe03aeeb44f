"""The page: everything in one file that asks for nothing else, and a script that sorts it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from whence._util.text import to_printable
from whence.faithfulness import STEPS
from whence.metrics.statistics import interval_of_mean
from whence.render.colors import get_colormap, to_hex
from whence.render.overlay import is_signed, tabulate_colors
from whence.render.styles import page_style, words_style
from whence.render.templates import render_macro
from whence.report.entries import Cell, Entry, Judged, scores_by_method
from whence.report.form import form

_HERE = Path(__file__).parent
# From here on a text gets a box that scrolls.
_LONG = 700
# More pictures than this do not fit side by side on a phone.
_NARROW = 2
_FOCUS = {"light": "#0b57d0", "dark": "#a8c7fa"}

NOTES = (
    "A map says which parts of the input moved this model towards the class, as the method sees "
    "it. It does not say that the model is right, nor what a person would look at. Each map is "
    "coloured from its own lowest to its own highest score: colours of different maps cannot be "
    "compared.",
    "The probability is the model's own figure. Models are often surer than they are right.",
    "Faithfulness is measured by removal: 10, 20, … 90 % of the photo's pixels become black, or of "
    "the text's words are taken out, and the model runs again on what is left. The score is the "
    "area under the class's probability when the least relevant go first (dashed), less the area "
    "when the most relevant go first (solid), times 100. It lies between -90 and 90; scores that "
    "know nothing of the model get about 0 on average, and single inputs scatter around it.",
    "Compare methods on the same inputs by it. Between inputs it says little: a class whose "
    "probability hardly falls, or is small to begin with, gets a low score from every method. A "
    "photo with black holes is unlike anything that the model was trained on, so a score is "
    "evidence, and no proof.",
    "“Best on” counts inputs on which a method has the highest score for the class shown first; "
    "ties count for all. An interval holds the mean of such inputs in 95 of 100 draws.",
)


def page(title: str, entries: Sequence[Entry], facts: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        title: Its heading.
        entries: The inputs, in the order they are shown in at first.
        facts: Settings and versions, told at the end.
    """
    return "\n".join(_lines(to_printable(title), entries, facts)) + "\n"


def _lines(title: str, entries: Sequence[Entry], facts: Mapping[str, Any]) -> Iterator[str]:
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    methods = list(dict.fromkeys(cell.method for one in entries for cell in one.cells))
    columns = 1 + max(1, len(methods))
    wide = " class=wide" if columns > _NARROW else ""
    yield from (
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_style()}</style>",
        "</head>",
        '<body><main class="whence">',
        f'<h1 dir="auto">{escape(title)}</h1>',
        f'<p class="lead">{_lead(entries, methods)}</p>',
        _legends(entries),
        '<section class="all" aria-label="Inputs">',
        form(methods, photos=any(one.photo for one in entries)),
        f'<ul id="inputs"{wide} style="--columns:{columns}">',
    )
    for one in entries:
        yield _item(one, methods)
    yield "</ul></section>"
    yield from (_methods(kind, entries) for kind in ("image", "text"))
    notes = "".join(f"<li>{escape(note)}</li>" for note in NOTES)
    yield f'<section><h2>What the numbers mean</h2><ul class="meaning">{notes}</ul></section>'
    told = json.dumps(facts, ensure_ascii=False, indent=2)
    told = "\n".join(to_printable(line) for line in told.split("\n"))
    yield f'<section><h2>Settings and versions</h2><pre tabindex="0">{escape(told)}</pre></section>'
    yield "</main>"
    yield f"<script>{script}</script>"
    yield "</body>\n</html>"


def _policy(script: str) -> str:
    """Nothing from outside, and no script but ours, whatever a name may hold."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = ("default-src 'none'", "img-src data:", "style-src 'unsafe-inline'")
    return "; ".join((*rules, f"script-src 'sha256-{digest}'", "base-uri 'none'"))


def _style() -> str:
    focus = "".join(
        f"{opens}:root {{ --whence-focus: {color}; }}{closes}\n"
        for opens, color, closes in (
            ("", _FOCUS["light"], ""),
            ("@media (prefers-color-scheme: dark) { ", _FOCUS["dark"], " }"),
        )
    )
    own = (_HERE / "page.css").read_text(encoding="utf-8")
    return page_style("auto") + words_style("auto") + focus + own


def _lead(entries: Sequence[Entry], methods: Sequence[str]) -> str:
    failed = sum(one.error is not None for one in entries)
    inputs = "1 input" if len(entries) == 1 else f"{len(entries)} inputs"
    by = f" by {escape(to_printable(', '.join(methods)))}" if methods else ""
    wrong = f"; {failed} could not be explained" if failed else ""
    return f"{inputs}, explained{by}{wrong}."


def _legends(entries: Sequence[Entry]) -> str:
    cells = [cell for one in entries for cell in one.cells]
    legends = []
    if any(one.photo for one in entries):
        colors = tabulate_colors(get_colormap("auto", signed=False))
        stops = ", ".join(to_hex(colors[at]) for at in (0, 51, 102, 153, 204, 255))
        legends.append(
            f'<p class="legend"><span>low</span><span class="ramp heat" aria-hidden="true" '
            f'style="background: linear-gradient(to right, {stops})"></span><span>high</span>'
            f"<span>Each map from its own lowest to its own highest score. Where scores have both "
            f"signs, orange is for the class and blue against it.</span></p>"
        )
    of_texts = [cell for one in entries if one.kind == "text" for cell in one.cells]
    if of_texts:
        legends.append(
            render_macro(
                "render/templates/words.html.j2",
                "legend",
                any(is_signed(cell.found.scores) for cell in of_texts),
            )
        )
    if any(cell.judged for cell in cells):
        legends.append(
            '<p class="legend">Curves: probability of the class as the most relevant parts '
            "(solid) or the least relevant (dashed) are removed. Faithfulness is the area "
            "between, from -90 to 90; more is better, and what knows nothing gets about 0.</p>"
        )
    return "\n".join(legends)


def _item(one: Entry, methods: Sequence[str]) -> str:
    name = f'<h3><bdi class="name">{escape(to_printable(one.name))}</bdi></h3>'
    if one.error is not None:
        error = escape(to_printable(one.error))
        return f'<li data-failed="1" {_data(one, methods)}>{name}<p class="error">{error}</p></li>'
    style = ""
    if one.photo:
        style = f' style="--photo:url({one.photo});--ratio:{one.proportion:.3f}"'
    alone = len(methods) == 1
    shown = _photos(one, alone) if one.photo else "".join(_text(cell, alone) for cell in one.cells)
    notes = "".join(f"<li>{escape(to_printable(note))}</li>" for note in one.notes)
    told = f'<ul class="notes">{notes}</ul>' if notes else ""
    return f"<li {_data(one, methods)}{style}>{name}{shown}{told}</li>"


def _data(one: Entry, methods: Sequence[str]) -> str:
    """What the script sorts by: the class shown first, and its faithfulness by each method."""
    first = one.cells[0].found.probability if one.cells else None
    scores = {cell.method: cell.score for cell in reversed(one.cells)}
    values = {
        "class": to_printable(one.predicted),
        "probability": _number(first, 6),
        "faithfulness": " ".join(_number(scores.get(method), 3) for method in methods),
    }
    return " ".join(f'data-{key}="{escape(value)}"' for key, value in values.items())


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _photos(one: Entry, alone: bool) -> str:
    name = escape(to_printable(one.name))
    predicted = escape(to_printable(one.predicted))
    shown = (
        f'<figure><div class="seen" role="img" aria-label="{name}"></div><figcaption><small>'
        f'predicted:</small> <bdi class="class">{predicted}</bdi></figcaption></figure>'
    )
    per_class = len({cell.method for cell in one.cells})
    maps = (_map(cell, alone, at % per_class == 0) for at, cell in enumerate(one.cells))
    return f'<div class="photo">{shown}{"".join(maps)}</div>'


def _map(cell: Cell, alone: bool, first: bool) -> str:
    said = escape(to_printable(f"Map of {cell.method} for {cell.found.name}"))
    picture = f'<div class="seen map"><img alt="{said}" src="{cell.shown}"></div>'
    return (
        f"<figure{' class=first' * first}>{picture}"
        f"<figcaption>{_caption(cell, alone)}</figcaption></figure>"
    )


def _text(cell: Cell, alone: bool) -> str:
    long = len(cell.shown) > _LONG and 'class="words long" tabindex="0"'
    words = f'<p {long or "class=words"} dir="auto">{cell.shown}</p>'
    return f'<figure class="text"><figcaption>{_caption(cell, alone)}</figcaption>{words}</figure>'


def _caption(cell: Cell, alone: bool) -> str:
    """The class and its probability; the method, unless all maps are its."""
    name, method = escape(cell.found.name), escape(to_printable(cell.method))
    by = "" if alone else f" <small>by {method}</small>"
    said = f'<b><bdi class="class">{name}</bdi></b> {escape(cell.found.percent)}'
    return f"{said}{by}{_judged(cell.judged)}"


def _judged(judged: Judged | None) -> str:
    if judged is None:
        return ""
    ends = (judged.most[0], judged.most[-1], judged.least[-1])
    start, most, least = (f"{100 * chance:.0f} %" for chance in ends)
    said = f"From {start}: to {most} without the most relevant, {least} without the least relevant"
    lines = "".join(
        f'<polyline class="{order}" points="{_points(curve)}"/>'
        for order, curve in (("most", judged.most), ("least", judged.least))
    )
    return (
        f'<span class="judged"><svg viewBox="0 0 90 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{said}">{lines}</svg><span><small>faithfulness</small> '
        f"{judged.score:.1f}</span></span>"
    )


def _points(curve: Sequence[float]) -> str:
    pairs = zip(STEPS, curve, strict=True)
    return " ".join(f"{100 * step:.0f},{100 * (1 - chance):.0f}" for step, chance in pairs)


def _methods(kind: str, entries: Sequence[Entry]) -> str:
    """How faithful methods are on all inputs of a kind together."""
    found = scores_by_method([one for one in entries if one.kind == kind])
    if not found or len(next(iter(found.values()))) < 2:
        return ""
    best = np.max(list(found.values()), axis=0)
    rows = []
    for method, scores in found.items():
        mean = interval_of_mean(np.array(scores))
        wins = int(np.sum(np.array(scores) > best - 1e-9))
        rows.append(
            f'<tr><th scope="row">{escape(to_printable(method))}</th><td>{mean.estimate:.1f}</td>'
            f"<td>{mean.low:.1f} to {mean.high:.1f}</td><td>{np.median(scores):.1f}</td>"
            f"<td>{wins}</td></tr>"
        )
    heads = "".join(
        f'<th scope="col">{head}</th>' for head in ("method", "mean", "95 %", "median", "best on")
    )
    return (
        f'<section><h2>Faithfulness of all {kind}s</h2><div class="scroll"><table><caption>'
        f"The class shown first, {len(best)} {kind}s.</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )
