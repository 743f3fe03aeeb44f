"""The part of `whence report` that shows the results of a run over many inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from whence._util.files import is_file
from whence._util.text import to_printable
from whence.errors import WhenceError

# Such as s3://bucket/results; nothing is read from the web.
_ADDRESS = re.compile(r"(?!https?:)[A-Za-z][A-Za-z0-9+.-]+://\S+")
# Failed inputs that are named in the terminal; the page lists more.
_NAMED = 10


class Page(NamedTuple):
    """The result, the page's file and what it shows."""

    result: str
    out: Path
    title: str | None
    faithfulness: bool
    force: bool
    limit: int | None


def is_result(argument: str) -> bool:
    """Whether an argument is a folder of results; an address can be nothing else."""
    if _ADDRESS.match(argument):
        return True
    return is_file(Path(argument).expanduser() / "_whence" / "run.json")


def check_request(inputs: Sequence[str], asked: Sequence[str]) -> None:
    """Refuse other inputs beside a result, and options of inputs that are explained now."""
    if len(inputs) > 1:
        raise WhenceError("A folder of results goes on a page of its own: name it alone.")
    if asked:
        raise WhenceError(
            f"'{inputs[0]}' holds results, which are shown as they were stored; {asked[0]} is for "
            f"inputs that are explained now."
        )


def report(
    page: Page, model: str | None, weights: Path | None, device: str | None, quiet: bool
) -> None:
    """Write the page of a result, and tell what is on it."""
    from whence.distributed import ResultFolder
    from whence.report.stored import DEFAULT_LIMIT, StoredReportRequest, build_stored_report

    folder = ResultFolder(page.result)
    title = page.title if page.title is not None else Path(page.result.rstrip("/")).name
    request = StoredReportRequest(
        folder,
        page.out,
        title or "Results",
        page.faithfulness,
        page.force,
        page.limit or DEFAULT_LIMIT,
        model,
        weights,
        device,
    )
    built = build_stored_report(request)
    drawn = built.drawn
    for one in drawn.failures[:_NAMED]:
        typer.echo(to_printable(f"{one['id']}: {one['error']}"), err=True)
    if drawn.failed > _NAMED:
        typer.echo(f"… and {drawn.failed - _NAMED:,} more that failed.", err=True)
    if built.problem:
        problem = f"Note: faithfulness was not measured, the model is missing: {built.problem}"
        typer.echo(to_printable(problem), err=True)
    if not quiet:
        size = page.out.stat().st_size / 1e6
        shown, explained = len(drawn.rows), drawn.explained
        typer.echo(f"{shown:,} of {explained:,} explained inputs → {page.out} ({size:.2f} MB)")
    if drawn.failed:
        raise typer.Exit(1)
