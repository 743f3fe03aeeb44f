"""Write the overview of finished runs to a folder: sentences, tables, pictures and a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whence._util.files import is_file, write_atomically
from whence.benchmark.formats import MISSING, round_cell
from whence.benchmark.overview import formats, pictures
from whence.benchmark.overview.runs import find_run_folders, read_runs
from whence.benchmark.overview.sentences import write_notes, write_sentences
from whence.benchmark.overview.summary import Overview, summarize_runs
from whence.benchmark.table import BenchmarkTable
from whence.errors import WhenceError
from whence.metrics.rankings import Ranking, check_ranking
from whence.render.templates import render_template

FILES = ("overview.md", "overview.csv", "ranks.csv", "overview.html")


@dataclass(frozen=True)
class OverviewResult:
    """An overview that was written: what it says, its folder, and runs that have not finished."""

    overview: Overview
    folder: Path
    unfinished: list[Path]

    @property
    def sentences(self) -> list[str]:
        """What it says."""
        return write_sentences(self.overview)


@dataclass(frozen=True)
class OverviewPictures:
    """The pictures of an overview, as PNG; None where there is nothing to draw."""

    ranks: bytes | None
    agreement: bytes | None


def write_overview(
    folders: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    ranking: Ranking = "nemenyi",
) -> OverviewResult:
    """Write the overview of all finished runs in folders; nothing is computed again.

    Runs of equal settings whose methods were computed in different folders count as one run.

    Args:
        folders: Folders of runs, or folders that hold such.
        out: Where to write it; the first folder if left out.
        ranking: Which test groups methods: Nemenyi's, or Wilcoxon's, Holm-corrected.

    Raises:
        WhenceError: There is no finished run, no figure of them is ranked, or two runs that differ
            would have one name.
    """
    check_ranking(ranking)
    given = [folders] if isinstance(folders, str | Path) else list(folders)
    paths = [Path(one).expanduser() for one in given]
    if not paths:
        raise WhenceError("Name at least one folder of benchmark runs, with --data.")
    runs, unfinished = read_runs(paths)
    overview = summarize_runs(runs, ranking)
    if overview is None:
        listed = ", ".join(dict.fromkeys(run.protocol.name for run in runs))
        raise WhenceError(f"Methods are not ranked by figures of {listed}: there is no overview.")
    folder = paths[0] if out is None else Path(out)
    write_overview_files(overview, folder, draw_pictures(overview))
    return OverviewResult(overview, folder, unfinished)


def draw_pictures(overview: Overview) -> OverviewPictures:
    """Draw the ranks and the agreement."""
    comparison, agreement = overview.comparison, overview.agreement
    return OverviewPictures(
        None if comparison is None else pictures.draw_ranks(comparison),
        None if agreement is None else pictures.draw_agreement(agreement, overview.names),
    )


def write_overview_files(
    overview: Overview, folder: Path, drawn: OverviewPictures, *, page: bool = True
) -> None:
    """Write the files of an overview, each whole or not at all; its `page` where it is wanted."""
    contents: dict[str, str | bytes | None] = {
        "overview.md": formats.to_markdown(overview),
        "overview.csv": formats.to_csv(overview),
        "ranks.csv": formats.ranks_to_csv(overview),
        "agreement.csv": formats.agreement_to_csv(overview) or None,
        "ranks.png": drawn.ranks,
        "agreement.png": drawn.agreement,
    }
    if page:
        contents["overview.html"] = render_overview(overview, folder, drawn)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise WhenceError(f"The folder '{folder}' cannot be made: {reason}.") from error
    for name, content in contents.items():
        if content is not None:
            data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
            write_atomically(folder / name, data)


def describe_overview(overview: Overview, drawn: OverviewPictures) -> dict[str, object]:
    """What a page tells of an overview: sentences, ranks, pictures and notes."""
    return {
        "sentences": write_sentences(overview),
        "headings": formats.HEADINGS,
        "ranks": formats.list_rows(overview),
        "picture": drawn.ranks,
        "agreement": drawn.agreement,
        "notes": write_notes(overview),
    }


def render_overview(overview: Overview, folder: Path, drawn: OverviewPictures) -> str:
    """Render the page of an overview, with links to the pages of its runs."""
    ranked = list(overview.comparison.mean_ranks) if overview.comparison else []
    methods = [*ranked, *(m for m in overview.methods if m not in ranked)]
    verdicts = {
        (method, one.criterion): one.verdict
        for method, standings in overview.standings.items()
        for one in standings
    }
    rows = []
    for method in methods:
        cells = []
        for at, one in enumerate(overview.criteria):
            cell = one.cells.get(method)
            shown = None if cell is None else round_cell(cell, one.metric.digits)
            cells.append((shown, verdicts.get((method, at), "")))
        rows.append({"method": method, "cells": cells})
    links = []
    for run in overview.runs:
        page = run.folder / "report.html"
        href = os.path.relpath(page, folder) if is_file(page) else ""
        links.append((" · ".join(reversed(run.key)), href))
    return render_template(
        "benchmark/templates/overview.html.j2",
        title="Overview of a benchmark",
        theme="auto",
        **describe_overview(overview, drawn),
        criteria=[
            f"{name} {'↑' if one.sign > 0 else '↓'}"
            for name, one in zip(overview.names, overview.criteria, strict=True)
        ],
        rows=rows,
        missing=MISSING,
        links=links,
    )


def has_ranked_figures(table: BenchmarkTable) -> bool:
    """Whether methods are ranked by any figure of a table."""
    return any(metric.ranked for metric in table.metrics)


def is_suite(folder: Path) -> bool:
    """Whether a folder holds runs in folders of its own, and is not itself that of a run."""
    if not folder.is_dir() or is_file(folder / "run.json"):
        return False
    return bool(find_run_folders([folder]))
