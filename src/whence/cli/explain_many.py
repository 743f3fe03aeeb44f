"""`whence explain` over many inputs: rows of Parquet in a folder, here or by Ray."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from whence._util.text import to_printable
from whence.errors import WhenceError

if TYPE_CHECKING:
    from whence.distributed.ray_cluster import RayOptions
    from whence.distributed.settings import RunSettings
    from whence.distributed.summary import RunSummary
    from whence.pipeline import ExplainSettings

PANEL = "Many inputs, to Parquet"
PART_ROWS = 512
# Names of tables that only such runs read.
_TABLES = (".parquet", ".jsonl", ".jsonl.gz", ".ndjson", ".tar", ".tar.gz", ".tgz", ".lance")
_CLASSES = 10

IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="COLUMN",
        rich_help_panel=PANEL,
        help="Of a table, the column that tells rows apart; id or __key__ if left out.",
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        rich_help_panel=PANEL,
        help="Of a table, the column of photos or texts; found by its type if left out.",
    ),
]
Scores = Annotated[
    Literal["float32", "float16"],
    typer.Option(rich_help_panel=PANEL, help="The type of stored scores."),
]
PartRows = Annotated[
    int,
    typer.Option(min=1, metavar="N", rich_help_panel=PANEL, help="The rows of a Parquet file."),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel=PANEL,
        help="How many photos are read and prepared at once; as many as CPUs, up to 4, if left "
        "out.",
    ),
]


Retry = Annotated[
    bool,
    typer.Option(
        "--retry", rich_help_panel=PANEL, help="Explain inputs again that failed in an earlier run."
    ),
]


def is_for_many(inputs: Sequence[str]) -> bool:
    """Whether only a run to Parquet reads these inputs: addresses, tables and folders of them."""
    return any(
        "://" in one.split(" ")[0] or one.rstrip("/").endswith(_TABLES) or _holds_tables(one)
        for one in inputs
    )


def _holds_tables(folder: str) -> bool:
    """Whether a folder holds tables, and nothing beside them."""
    try:
        with os.scandir(folder) as found:
            names = (one.name for one in found if not one.name.startswith((".", "_")))
            first = next(names, "")
            return first.endswith(_TABLES) and all(name.endswith(_TABLES) for name in names)
    except (OSError, ValueError):  # no folder, or a text
        return False


@dataclass(frozen=True)
class RowOptions:
    """The options of tables and rows."""

    id: str | None
    column: str | None
    scores: Literal["float32", "float16"]
    part_rows: int
    threads: int | None

    def make_settings(self, how: ExplainSettings) -> RunSettings:
        """Make the settings of a run."""
        from whence.distributed.settings import RunSettings

        rows = (self.column, self.id, self.scores, self.part_rows, self.threads)
        return RunSettings(how, None, *rows)


_DEFAULTS = RowOptions(None, None, "float32", PART_ROWS, None)


@dataclass(frozen=True)
class RunOptions:
    """How a run begins, and what it prints."""

    force: bool
    retry: bool
    quiet: bool
    as_json: bool


def check_options(
    rows: RowOptions,
    how: RunOptions,
    is_many: bool,
    format: str | None,
    text: bool,
    outlines: bool,
) -> None:
    """Refuse options that do not go together."""
    if not is_many:
        given = [name for name, value in asdict(rows).items() if value != getattr(_DEFAULTS, name)]
        for name in [*given, *(["retry"] if how.retry else [])]:
            option = f"--{name.replace('_', '-')}"
            raise WhenceError(f"{option} is for rows of Parquet: give --format parquet too.")
        return
    if how.force and how.retry:
        raise WhenceError("Give either --force, which starts anew, or --retry.")
    if text:
        raise WhenceError("--text is for texts on the command line; name files or tables of them.")
    if outlines or format in ("png", "jpg", "svg", "html"):
        option = "--outlines" if outlines else f"--format {format}"
        raise WhenceError(f"{option} is for figures, and this run writes rows of Parquet.")


def explain_many(
    inputs: Sequence[str],
    settings: RunSettings,
    out: str,
    ray: RayOptions | None,
    how: RunOptions,
) -> None:
    """Explain many inputs, print a summary, and exit with 1 if inputs failed."""
    from whence.distributed.run import run_many

    def tell(line: str) -> None:
        if not how.quiet and not how.as_json:
            typer.echo(to_printable(line[:1].upper() + line[1:]), err=True)

    force, retry = how.force, how.retry
    try:
        if ray is None:
            summary = run_many(inputs, settings, out, force=force, retry=retry, tell=tell)
        else:
            from whence.distributed.ray_run import run_on_ray

            summary = run_on_ray(inputs, settings, out, ray, force=force, retry=retry, tell=tell)
    except KeyboardInterrupt:
        kept = f"Interrupted. Finished rows are kept in '{out}'; the same command goes on."
        typer.echo(to_printable(kept), err=True)
        raise typer.Exit(130) from None
    if how.as_json:
        typer.echo(json.dumps(summary.to_json(), ensure_ascii=False, indent=2))
    else:
        _print_summary(summary, out, how.quiet)
    if summary.failed or not summary.is_complete:
        raise typer.Exit(1)


def _print_summary(summary: RunSummary, out: str, quiet: bool) -> None:
    if not quiet:
        speed = summary.rows_per_second
        took = "" if speed is None else f", {speed:,.3g} inputs a second"
        parts = "1 part" if summary.parts == 1 else f"{summary.parts:,} parts"
        inputs = summary.inputs + summary.gone  # the rows of all of them are counted
        typer.echo(
            to_printable(
                f"{summary.explained:,} of {inputs:,} inputs explained → {out} ({parts}{took})"
            )
        )
        named = list(summary.classes.items())
        shown = ", ".join(f"{name.strip()} {count:,}" for name, count in named[:_CLASSES])
        more = f" and {len(named) - _CLASSES:,} more" if len(named) > _CLASSES else ""
        if shown:
            typer.echo(to_printable(f"  Classes: {shown}{more}."))
        for name, count in summary.doubts.items():
            typer.echo(to_printable(f"  Note: the check '{name}' is in doubt in {count:,} rows."))
        if summary.gone:
            typer.echo(f"  Note: rows of inputs that are gone are kept: {summary.gone:,}.")
    for kind in summary.errors:
        such = ("" if kind.count <= len(kind.ids) else "such as ") + ", ".join(kind.ids)
        typer.echo(to_printable(f"{_count(kind.count)} failed: {kind.sentence} ({such})"), err=True)
    if summary.missing_count:
        such = ", ".join(summary.missing)
        line = f"{_count(summary.missing_count)} have no row: {such}. Give the command again."
        typer.echo(to_printable(line), err=True)
    if summary.repeated_count:
        such = ", ".join(summary.repeated)
        line = f"{_count(summary.repeated_count)} have more than one row: {such}."
        typer.echo(to_printable(line), err=True)


def _count(inputs: int) -> str:
    return "1 input" if inputs == 1 else f"{inputs:,} inputs"
