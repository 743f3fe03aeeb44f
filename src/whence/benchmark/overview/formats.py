"""Format an overview in Markdown, CSV and for a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from whence.benchmark.overview.sentences import write_notes, write_sentences
from whence.benchmark.overview.summary import Overview, find_p_values
from whence.metrics.rankings import rank_values

if TYPE_CHECKING:
    from rich.table import Table as RichTable

HEADINGS = ("method", "mean rank", "leads", "ties", "beaten", "share beaten")


def list_rows(overview: Overview) -> list[tuple[str, ...]]:
    """List the methods by mean rank: in how many criteria each leads, ties and is beaten."""
    ranks = overview.comparison.mean_ranks if overview.comparison else {}
    unranked = [method for method in overview.methods if method not in ranks]
    rows = []
    for method in (*ranks, *unranked):
        counts = overview.count_verdicts(method)
        rank = f"{ranks[method]:.2f}" if method in ranks else ""
        share = f"{100 * overview.share_beaten(method):.0f} %"
        rows.append((method, rank, *(str(counts[one]) for one in counts), share))
    return rows


def to_markdown(overview: Overview) -> str:
    """The overview in Markdown: sentences, the table of ranks, and notes."""
    rows = [HEADINGS, ("---", *["---:"] * 5), *list_rows(overview)]
    table = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    lines = ["# Overview", "", *(f"- {one}" for one in write_sentences(overview)), "", *table, ""]
    if overview.comparison is not None:
        lines += ["![Mean ranks](ranks.png)", ""]
    if overview.agreement is not None:
        lines += ["![Agreement of the criteria](agreement.png)", ""]
    return "\n".join([*lines, *(f"- {note}" for note in write_notes(overview))]) + "\n"


def to_csv(overview: Overview) -> str:
    """All figures of all criteria, a row for each method and criterion."""
    best = overview.comparison.best if overview.comparison else None
    headings = (
        *("model", "dataset", "protocol", "metric", "better", "method", "value", "low", "high"),
        *("samples", "rank", "p against best", "p against best on average", "verdict"),
    )
    verdicts = {
        (method, one.criterion): one.verdict
        for method, standings in overview.standings.items()
        for one in standings
    }
    rows: list[Sequence[object]] = []
    for at, one in enumerate(overview.criteria):
        ranks = rank_values(one.sign * np.array([cell.value for cell in one.cells.values()]))
        p_values = find_p_values(one, best)
        metric = one.metric
        for (method, cell), rank in zip(one.cells.items(), ranks, strict=True):
            where = (one.model, one.dataset, one.protocol, metric.name, metric.better)
            figure = (cell.value, cell.low, cell.high, cell.samples, f"{rank:g}")
            tests = (cell.p, p_values[method], verdicts[method, at])
            rows.append((*where, method, *figure, *tests))
    return _write_csv(headings, rows)


def ranks_to_csv(overview: Overview) -> str:
    """Mean ranks, and in how many criteria each method leads, ties and is beaten."""
    ranks = overview.comparison.mean_ranks if overview.comparison else {}
    rows = []
    for method, _, leads, ties, beaten, _ in list_rows(overview):
        share = overview.share_beaten(method)
        rows.append((method, ranks.get(method), leads, ties, beaten, share))
    return _write_csv(("method", "mean rank", "leads", "ties", "beaten", "share beaten"), rows)


def agreement_to_csv(overview: Overview) -> str:
    """Kendall's tau of each two criteria, with its interval."""
    agreement = overview.agreement
    if agreement is None:
        return ""
    pairs = zip(*np.triu_indices(len(overview.names), 1), strict=True)
    rows = [
        (
            *(overview.names[one], overview.names[other]),
            *(
                float(values[one, other])
                for values in (agreement.tau, agreement.low, agreement.high)
            ),
        )
        for one, other in pairs
    ]
    return _write_csv(("criterion", "other criterion", "tau", "low", "high"), rows)


def to_terminal(overview: Overview) -> RichTable:
    """The table of ranks for a terminal."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title="Overview", box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    shown.add_column(HEADINGS[0], no_wrap=True)
    for heading in HEADINGS[1:]:
        shown.add_column(heading, justify="right")
    for method, *cells in list_rows(overview):
        shown.add_row(Text(method), *cells)
    return shown


def _write_csv(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return stream.getvalue()
