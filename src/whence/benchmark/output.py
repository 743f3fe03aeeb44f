"""Write the table, the chart and the page of a finished benchmark run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whence._util.text import to_printable
from whence.benchmark import charts, formats, report
from whence.benchmark.columns import Columns
from whence.benchmark.job import BenchmarkJob
from whence.benchmark.overview.runs import FinishedRun
from whence.benchmark.overview.summary import Overview, summarize_runs
from whence.benchmark.overview.writing import (
    describe_overview,
    draw_pictures,
    write_overview_files,
)
from whence.benchmark.table import BenchmarkTable, sort_samples, tabulate
from whence.errors import WhenceError

_NAMED_SAMPLES = 5


@dataclass(frozen=True)
class BenchmarkResult:
    """The result of a benchmark run.

    Attributes:
        table: The figures.
        folder: The folder of all files.
        results: For each method its rows, as columns.
        skipped: Samples that were left out, and why.
        set_aside: Result files that were damaged and have been computed again.
        overview: How the ranked figures agree and which methods differ; None if there is only one
            method, or no ranked figure.
    """

    table: BenchmarkTable
    folder: Path
    results: dict[str, Columns]
    skipped: dict[str, str]
    set_aside: list[str]
    overview: Overview | None = None


def write_output(job: BenchmarkJob) -> BenchmarkResult:
    """Compute the table of a run whose rows are all there, and write everything."""
    results = {m.label: job.store.load_results(m.label, job.names) for m in job.methods}
    skipped = _list_skipped(results)
    used = np.array([name not in skipped for name in job.names])
    if not used.any():
        name, error = next(iter(skipped.items()))
        raise WhenceError(f"No sample can be used; of '{name}': {error}")
    results = {label: {k: v[used] for k, v in of.items()} for label, of in results.items()}
    count = int(used.sum())
    subject = f"{job.dataset.name}, {Path(job.loaded.name).name}"
    samples = f"{count} sample{'s' if count != 1 else ''}"
    title = f"{job.protocol.title or job.protocol.name.capitalize()}: {subject}, {samples}"
    table = tabulate(job.protocol, title, results, job.seed, _write_footer(job, skipped))
    settings, folder = job.store.settings, job.store.folder
    run = FinishedRun(
        job.protocol,
        Path(job.loaded.name).name,
        job.dataset.name,
        table,
        {method: sort_samples(columns) for method, columns in results.items()},
        settings,
        folder,
    )
    overview = summarize_runs([run], job.ranking) if len(job.methods) > 1 else None
    _write_files(job, table, results, overview)
    summary = {
        "used": count,
        "skipped": [{"sample": name, "error": error} for name, error in skipped.items()],
        "set_aside": job.store.set_aside,
        "notes": table.notes,
    }
    job.write_state("finished", {"summary": summary, "results": table.to_dict()})
    return BenchmarkResult(table, folder, results, skipped, job.store.set_aside, overview)


def _list_skipped(results: Mapping[str, Columns]) -> dict[str, str]:
    """Samples that some method has no figures of, and why."""
    skipped: dict[str, str] = {}
    for columns in results.values():
        for name, error in zip(columns["sample"], columns.get("error", ()), strict=False):
            if isinstance(error, str):
                skipped.setdefault(str(name), error)
    return skipped


def _write_footer(job: BenchmarkJob, skipped: Mapping[str, str]) -> list[str]:
    notes = []
    if skipped:
        named = ", ".join(map(to_printable, list(skipped)[:_NAMED_SAMPLES]))
        named += ", …" if len(skipped) > _NAMED_SAMPLES else ""
        notes.append(f"{len(skipped)} sample(s) were skipped: {named}; run.json says why.")
    if job.earlier_versions:
        listed = [", ".join(f"{k} {v}" for k, v in one.items()) for one in job.earlier_versions]
        notes.append(f"Some results may come from other versions: {'; '.join(listed)}.")
    return notes


def _write_files(
    job: BenchmarkJob,
    table: BenchmarkTable,
    results: Mapping[str, Columns],
    overview: Overview | None,
) -> None:
    store = job.store
    store.write("table.md", formats.to_markdown(table))
    store.write("table.csv", formats.to_csv(table))
    store.write("table.tex", formats.to_latex(table))
    chart = charts.draw_chart(job.protocol.list_curves(results), results, table.title)
    if chart is not None:
        store.write("curves.png", chart)
    described = None
    if overview is not None:
        drawn = draw_pictures(overview)
        described = describe_overview(overview, drawn)
        write_overview_files(overview, store.folder, drawn, page=False)
    store.write("report.html", report.render_page(job, table, results, chart, described))
