"""Format a benchmark table for a terminal, in Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from whence.benchmark.protocols.base import Metric
from whence.benchmark.table import BenchmarkTable, TableCell

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MISSING = "–"  # noqa: RUF001


def format_value(cell: TableCell, metric: Metric) -> str:
    """The value of a figure, rounded."""
    return f"{cell.value:.{metric.digits}f}"


def format_interval(cell: TableCell, metric: Metric) -> str:
    """The interval of a figure, rounded."""
    return f"[{cell.low:.{metric.digits}f}, {cell.high:.{metric.digits}f}]"


def to_terminal(table: BenchmarkTable) -> RichTable:
    """The table for a terminal."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=table.title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    shown.add_column("method", no_wrap=True)
    metrics = [metric for metric in table.metrics if metric.shown]
    for metric in metrics:
        shown.add_column(metric.heading, justify="right")
    for method in table.methods:
        cells = []
        for metric in metrics:
            cell = table.get_cell(method, metric)
            if cell is None:
                cells.append(Text(MISSING))
                continue
            mark = "≈ " if cell.is_like_best else ""
            text = Text(f"{mark}{format_value(cell, metric)}", "bold" if cell.is_best else "")
            cells.append(text.append(f"\n{format_interval(cell, metric)}", "dim not bold"))
        shown.add_row(Text(method), *cells)
    return shown


def to_markdown(table: BenchmarkTable) -> str:
    """The table in Markdown, with its notes."""
    metrics = [metric for metric in table.metrics if metric.shown]
    lines = [
        f"# {table.title}",
        "",
        "| method | " + " | ".join(metric.heading for metric in metrics) + " |",
        "| --- | " + " | ".join("---:" for _ in metrics) + " |",
    ]
    for method in table.methods:
        cells = []
        for metric in metrics:
            cell = table.get_cell(method, metric)
            if cell is None:
                cells.append(MISSING)
                continue
            value = (
                f"**{format_value(cell, metric)}**" if cell.is_best else format_value(cell, metric)
            )
            mark = "≈ " if cell.is_like_best else ""
            cells.append(f"{mark}{value} {format_interval(cell, metric)}")
        escaped = method.replace("|", "\\|")
        lines.append(f"| {escaped} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"- {note}" for note in table.notes)]) + "\n"


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
                continue
            p = "" if cell.p is None else repr(cell.p)
            numbers = [repr(number) for number in (cell.value, cell.low, cell.high)]
            row += [*numbers, p, cell.verdict, cell.samples]
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
    metrics = [metric for metric in table.metrics if metric.shown]
    lines = [f"% {note}" for note in table.notes]
    lines += [
        r"\begin{tabular}{l" + "r" * len(metrics) + "}",
        r"\toprule",
        " & ".join(["method", *(_escape_latex(metric.heading) for metric in metrics)]) + r" \\",
        r"\midrule",
    ]
    for method in table.methods:
        cells = [_escape_latex(method)]
        for metric in metrics:
            cell = table.get_cell(method, metric)
            if cell is None:
                cells.append("--")
                continue
            value = format_value(cell, metric)
            value = rf"\textbf{{{value}}}" if cell.is_best else value
            mark = r"$\approx$\," if cell.is_like_best else ""
            cells.append(rf"{mark}{value} {{\scriptsize {format_interval(cell, metric)}}}")
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"
