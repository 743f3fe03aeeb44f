"""Markdown tables of a run's rows."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from .figures import NOISY, divide_rounds, is_noisy, measure_spread
from .runs import Run

Row = dict[str, Any]
MARK = "!"
LEGEND = (
    f"Milliseconds are those of the fastest round. ± is half the distance between the quartiles of "
    f"all rounds, in percent of their median; {MARK} marks what spreads by more than {NOISY:.0f} %."
)
# What of a row stands side by side, so that its table has fewer lines.
ACROSS = {"growth": "what", "compiled": "variant", "long": "variant"}


def format_run(run: Run) -> str:
    """All tables of a run."""
    titles = dict.fromkeys(row["title"] for row in run.rows)
    parts = [run.describe(), LEGEND]
    for title in titles:
        rows = [row for row in run.rows if row["title"] == title]
        across = ACROSS.get(rows[0]["section"])
        table = format_table(rows) if across is None else format_side_by_side(rows, across)
        parts += [f"**{title}**", table]
    return "\n\n".join(parts)


def format_table(rows: Sequence[Row]) -> str:
    """A line for each row."""
    settings = list(dict.fromkeys(name for row in rows for name in row["setting"]))
    unit = rows[0]["unit"]
    head = [*settings, "what", "ms", "median", unit, "rounds", "peak MB", "held MB", "note"]
    lines = []
    for row in rows:
        own = [str(row["setting"].get(name, "")) for name in settings]
        figures = [*_format_time(row), format_ratio(row), str(row.get("rounds", ""))]
        memory = [_format_memory(row.get(name)) for name in ("peak MB", "held MB")]
        lines.append([*own, row["what"], *figures, *memory, row["note"]])
    return write_table(head, lines, texts=("what", "note"))


def format_side_by_side(rows: Sequence[Row], across: str) -> str:
    """A line for each setting, with the values of one key of rows side by side."""
    settings = list(dict.fromkeys(name for row in rows for name in row["setting"]))
    rest = ["what"] if across == "variant" else []
    columns = list(dict.fromkeys(row[across] for row in rows))
    has_held = any(row.get("held MB") is not None for row in rows)
    shown = ["ms", rows[0]["unit"], "peak MB", *(["held MB"] if has_held else [])]
    # What has no variant, such as a plain forward, stands in the first column.
    columns = [one for one in columns if one] or columns
    head = [*settings, *rest, *(f"{one}: {name}" for one in columns for name in shown)]
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        own = [str(row["setting"].get(name, "")) for name in settings]
        key = (*own, *(row[name] for name in rest))
        lines.setdefault(key, {})[row[across] or columns[0]] = row
    cells = [
        [*key, *(cell for one in columns for cell in _format_cells(by.get(one), shown))]
        for key, by in lines.items()
    ]
    notes = dict.fromkeys(f"{row['what']}: {row['note']}" for row in rows if row["note"])
    return "\n\n".join([write_table(head, cells, texts=("what",)), *notes])


def format_comparison(rows: Sequence[Row]) -> str:
    """Rows that have several variants, which were measured in turns, beside their first variant."""
    pairs = list(_pair_variants(rows))
    if not pairs:
        return "Nothing in this run was measured in several variants."
    settings = list(dict.fromkeys(name for row, _ in pairs for name in row["setting"]))
    head = [*settings, "what", "first", "ms", "second", "ms ", "second / first"]
    lines = []
    for first, second in pairs:
        ratios = divide_rounds(second["times"], first["times"])
        middle = statistics.median(ratios)
        own = [str(first["setting"].get(name, "")) for name in settings]
        lines.append(
            [
                *(*own, first["what"], first["variant"], _format_time(first)[0]),
                *(second["variant"], _format_time(second)[0]),
                f"{middle:.3f}{format_spread(measure_spread(ratios))}",
            ]
        )
    return write_table(head, lines, texts=("what", "first", "second"))


def _pair_variants(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["times"]:
            key = row["title"], tuple(row["setting"].items()), row["what"]
            groups.setdefault(key, []).append(row)
    for first, *others in groups.values():
        yield from ((first, other) for other in others)


def format_ratio(row: Row) -> str:
    """How many times the baseline of its group, and how far that spreads."""
    if row.get("ratio") is None:
        return ""
    return f"{row['ratio']:.2f}{format_spread(row['ratio spread'])}"


def _format_time(row: Row) -> tuple[str, str]:
    if not row["times"]:
        return "", ""
    digits = 2 if row["fastest"] < 10 else 1 if row["fastest"] < 1000 else 0
    fastest = f"{row['fastest']:,.{digits}f}{format_spread(row['spread'])}"
    return fastest, f"{row['median']:,.{digits}f}"


def format_spread(spread: float | None) -> str:
    if spread is None:
        return ""
    return f" ±{spread:.0f} %{f' {MARK}' if is_noisy(spread) else ''}"


def _format_memory(megabytes: float | None) -> str:
    return "" if megabytes is None else f"{megabytes:,.0f}"


def _format_cells(row: Row | None, shown: Sequence[str]) -> list[str]:
    if row is None:
        return [""] * len(shown)
    memory = [_format_memory(row.get(name)) for name in ("peak MB", "held MB")]
    ratio = "" if row.get("ratio") == 1 else format_ratio(row)
    return [_format_time(row)[0], ratio, *memory][: len(shown)]


def write_table(head: Sequence[str], lines: Sequence[Sequence[str]], texts: Sequence[str]) -> str:
    """A table without columns that are empty."""
    kept = [n for n in range(len(head)) if any(line[n] for line in lines)]
    rules = ["---" if head[n] in texts else "---:" for n in kept]
    table = [[head[n] for n in kept], rules, *([line[n] for n in kept] for line in lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)
