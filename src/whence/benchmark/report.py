"""One page with everything: the table, the curves, examples, settings. It needs nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from whence._util.text import data_uri, to_printable
from whence.benchmark.columns import Columns
from whence.benchmark.formats import NOTHING, figure, interval
from whence.benchmark.protocols.base import Protocol
from whence.benchmark.table import Table
from whence.errors import WhenceError
from whence.methods.specification import Chosen
from whence.models import LoadedModel
from whence.render import format_text_html, overlay
from whence.render.drawing import encode_png
from whence.render.styles import page_style, words_style

if TYPE_CHECKING:
    from whence.datasets import Dataset

_EXAMPLES = 3
_METHODS = {"image": 6, "text": 2}
_SIDE = 320
_MARKED = 400
_CURVES = 960

_STYLE = """
main.whence { max-width: 72rem; }
main.whence h2 { font-size: 1.15rem; font-weight: 600; color: inherit; margin: 0 0 .6rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .35rem .7rem; text-align: right; border-bottom: 1px solid var(--whence-track);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td small { display: block; color: var(--whence-muted); }
td.best { font-weight: 700; }
td.best small { font-weight: 400; }
.curves { max-width: 100%; height: auto; }
.pictures { display: flex; flex-wrap: wrap; gap: .8rem; margin: .4rem 0 1.4rem; }
figure { margin: 0; max-width: 15rem; font-size: .8rem; color: var(--whence-muted); }
figure img { max-width: 100%; display: block; border-radius: 4px; }
ul.notes { color: var(--whence-muted); font-size: .9rem; padding-left: 1.2rem; }
pre { overflow-x: auto; font-size: .8rem; }
"""


@dataclass(frozen=True)
class Example:
    """A sample that is shown.

    Attributes:
        name: Of the sample.
        value: What ranked it.
        good: Whether it is one of the best.
    """

    name: str
    value: float
    good: bool


def examples(
    protocol: Protocol, table: Table, results: Mapping[str, Columns]
) -> tuple[str, list[Example]]:
    """The samples on which the best method does best and worst, and that method."""
    metric = next((m for m in table.metrics if m.name == protocol.main), None)
    method = table.best(protocol.main) if metric else None
    if metric is None or method is None or protocol.main_column not in results[method]:
        return (method or table.methods[0]), []
    columns = results[method]
    values = columns[protocol.main_column]
    order = [int(at) for at in np.argsort(values, kind="stable") if np.isfinite(values[at])]
    if metric.better == "higher":
        order.reverse()
    count = min(_EXAMPLES, len(order) // 2)
    chosen = [(at, True) for at in order[:count]]
    chosen += [(at, False) for at in reversed(order[len(order) - count :])]
    names = columns["sample"]
    return method, [Example(str(names[at]), float(values[at]), good) for at, good in chosen]


def page(
    protocol: Protocol,
    table: Table,
    results: Mapping[str, Columns],
    curves: bytes | None,
    loaded: LoadedModel,
    dataset: Dataset,
    methods: Sequence[Chosen],
    facts: Mapping[str, Any],
) -> str:
    """The page.

    Args:
        protocol: What was measured.
        table: The figures.
        results: For each method its columns.
        curves: The drawn curves, as PNG.
        loaded: The model, to explain examples again.
        dataset: Where these come from.
        methods: What explains them.
        facts: Settings and versions, told at the end.
    """
    title = escape(to_printable(table.title))
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>\n{page_style('auto')}{words_style('auto')}{_STYLE}</style>",
        "</head>",
        f'<body><main class="whence"><h1>{title}</h1>',
        f"<section><h2>Table</h2>{_table(table)}{_notes(table.notes)}</section>",
    ]
    if curves is not None:
        address = "data:image/png;base64," + base64.b64encode(curves).decode()
        parts.append(
            f'<section><h2>Curves</h2><img class="curves" alt="Curves of all methods" '
            f'width="{_CURVES}" src="{address}"></section>'
        )
    best, chosen = examples(protocol, table, results)
    if chosen:
        parts.append(_shown_examples(protocol, best, chosen, loaded, dataset, methods))
    told = escape(printable_json(facts))
    parts.append(f"<section><h2>Settings and versions</h2><pre>{told}</pre></section>")
    parts.append("</main></body>\n</html>\n")
    return "\n".join(parts)


def printable_json(facts: Mapping[str, Any]) -> str:
    """Facts as JSON that people can read."""
    return json.dumps(facts, ensure_ascii=False, indent=2).encode("utf-8", "replace").decode()


def _table(table: Table) -> str:
    heads = "".join(f"<th>{escape(metric.heading)}</th>" for metric in table.metrics)
    lines = [f'<div class="scroll"><table><thead><tr><th>method</th>{heads}</tr></thead><tbody>']
    for method in table.methods:
        cells = [f"<td>{escape(to_printable(method))}</td>"]
        for metric in table.metrics:
            cell = table.cell(method, metric)
            if cell is None:
                cells.append(f"<td>{NOTHING}</td>")
                continue
            mark = "≈ " if cell.like_best else ""
            kind = ' class="best"' if cell.best else ""
            hint = "" if cell.p is None else f' title="p = {cell.p:.4g} against the best"'
            value, within = figure(cell, metric), interval(cell, metric)
            cells.append(f"<td{kind}{hint}>{mark}{value}<small>{within}</small></td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(to_printable(note))}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>'


def _shown_examples(
    protocol: Protocol,
    best: str,
    chosen: Sequence[Example],
    loaded: LoadedModel,
    dataset: Dataset,
    methods: Sequence[Chosen],
) -> str:
    first = [method for method in methods if method.label == best]
    rest = [method for method in methods if method.label != best]
    shown = [*first, *rest][: _METHODS[loaded.kind]]
    parts = [
        f"<section><h2>Examples</h2><p>The samples on which {escape(to_printable(best))} does best "
        f"and worst, by {escape(protocol.main_column.replace('_', ' '))}.</p>"
    ]
    for example in chosen:
        kind = "best" if example.good else "worst"
        name = escape(to_printable(example.name))
        parts.append(f"<h3>{kind}: {name} <span>{example.value:.4g}</span></h3>")
        try:
            sample = dataset.read(example.name)
            parts.append(_shown_example(protocol, loaded, sample, shown))
        except WhenceError as error:  # results are there all the same
            parts.append(f"<p>{escape(to_printable(str(error)))}</p>")
    return "\n".join([*parts, "</section>"])


def _shown_example(
    protocol: Protocol, loaded: LoadedModel, sample: Any, methods: Sequence[Chosen]
) -> str:
    pictures: list[str] = []
    for method in methods:
        seen, explanation = protocol.example(loaded, sample, method)
        names = explanation.target_names
        said = f"{method.label}: {names[0] if names else int(explanation.target[0])}"
        if isinstance(seen, str):
            pictures.append(f"<p>{escape(to_printable(said))}</p>{format_text_html(explanation)}")
            continue
        small = seen.copy()
        small.thumbnail((_SIDE, _SIDE))
        if not pictures:
            pictures.append(
                _picture(data_uri(encode_png(small.convert("RGB")), "image/png"), "photo")
            )
        grid = explanation.scores[0].reshape(explanation.grid)
        pictures.append(_picture(data_uri(encode_png(overlay(small, grid)), "image/png"), said))
    if isinstance(sample.content, str):
        return f"{_marked(sample)}{''.join(pictures)}"
    return f'<div class="pictures">{"".join(pictures)}</div>'


def _picture(address: str, caption: str) -> str:
    said = escape(to_printable(caption))
    return f'<figure><img alt="{said}" src="{address}"><figcaption>{said}</figcaption></figure>'


def _marked(sample: Any) -> str:
    if not sample.evidence:
        return ""
    spans = [" ".join(sample.words[start:end]) for start, end in sample.evidence]
    text = " … ".join(spans)
    text = text if len(text) <= _MARKED else text[: _MARKED - 1] + "…"
    return f'<p class="note">People marked: {escape(to_printable(text))}</p>'
