"""Format a benchmark table for a terminal, in Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from whence.benchmark.protocols.base import Metric
from whence.benchmark.table import BenchmarkTable, TableCell

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MISSING = "–"  # noqa: RUF001


class ShownCell(NamedTuple):
    """A figure as rounded texts; `mark` tells that it is like the best, `hint` how surely."""

    value: str
    interval: str
    mark: str
    best: bool
    hint: str


def format_row(
    table: BenchmarkTable, method: str, metrics: Sequence[Metric]
) -> list[ShownCell | None]:
    """Format the figures of a method; None where there is none."""
    found = [(table.get_cell(method, metric), metric.digits) for metric in metrics]
    return [None if cell is None else round_cell(cell, digits) for cell, digits in found]


def round_cell(cell: TableCell, digits: int) -> ShownCell:
    """Round a figure and its interval to texts."""
    interval = f"[{cell.low:.{digits}f}, {cell.high:.{digits}f}]"
    mark = "≈ " if cell.is_like_best else ""
    hint = "" if cell.p is None else f"p = {cell.p:.4g} against the best"
    return ShownCell(f"{cell.value:.{digits}f}", interval, mark, cell.is_best, hint)


def to_terminal(table: BenchmarkTable) -> RichTable:
    """The table for a terminal."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    def format_cell(cell: ShownCell | None) -> Text:
        if cell is None:
            return Text(MISSING)
        text = Text(f"{cell.mark}{cell.value}", "bold" if cell.best else "")
        return text.append(f"\n{cell.interval}", "dim not bold")

    shown = RichTable(title=table.title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    shown.add_column("method", no_wrap=True)
    metrics = [metric for metric in table.metrics if metric.shown]
    for metric in metrics:
        shown.add_column(metric.heading, justify="right")
    for method in table.methods:
        shown.add_row(Text(method), *map(format_cell, format_row(table, method, metrics)))
    return shown


def to_markdown(table: BenchmarkTable) -> str:
    """The table in Markdown, with its notes."""

    def format_cell(cell: ShownCell | None) -> str:
        if cell is None:
            return MISSING
        return f"{cell.mark}{f'**{cell.value}**' if cell.best else cell.value} {cell.interval}"

    metrics = [metric for metric in table.metrics if metric.shown]
    rows = [["method", *(metric.heading for metric in metrics)], ["---", *["---:"] * len(metrics)]]
    for method in table.methods:
        cells = map(format_cell, format_row(table, method, metrics))
        rows.append([method.replace("|", "\\|"), *cells])
    lines = [f"# {table.title}", "", *(f"| {' | '.join(row)} |" for row in rows), ""]
    return "\n".join([*lines, *(f"- {note}" for note in table.notes)]) + "\n"


def to_csv(table: BenchmarkTable) -> str:
    """All figures, a row for each method: value, low, high, p and verdict of each metric."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    parts = ("", " low", " high", " p", " verdict", " samples")
    names = [f"{metric.name}{part}" for metric in table.metrics for part in parts]
    writer.writerow(["method", *names])
    for method in table.methods:
        row: list[object] = [method]
        for metric in table.metrics:
            cell = table.get_cell(method, metric)
            if cell is None:
                row += [""] * len(parts)
            else:
                row += [cell.value, cell.low, cell.high, cell.p, cell.verdict, cell.samples]
        writer.writerow(row)
    return stream.getvalue()


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "≈": r"$\approx$",
    "≥": r"$\geq$",
    "±": r"$\pm$",
    "…": r"\ldots{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def to_latex(table: BenchmarkTable) -> str:
    """The table in LaTeX, with booktabs; notes are comments."""

    def format_cell(cell: ShownCell | None) -> str:
        if cell is None:
            return "--"
        value = rf"\textbf{{{cell.value}}}" if cell.best else cell.value
        mark = r"$\approx$\," if cell.mark else ""
        return rf"{mark}{value} {{\scriptsize {cell.interval}}}"

    metrics = [metric for metric in table.metrics if metric.shown]
    lines = [
        *(f"% {note}" for note in table.notes),
        r"\begin{tabular}{l" + "r" * len(metrics) + "}",
        r"\toprule",
        " & ".join(["method", *(_escape_latex(metric.heading) for metric in metrics)]) + r" \\",
        r"\midrule",
    ]
    for method in table.methods:
        cells = map(format_cell, format_row(table, method, metrics))
        lines.append(" & ".join([_escape_latex(method), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"
