"""`whence report`: parses, calls, prints. Nothing here imports torch before it must."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whence._util.defaults import METHOD
from whence._util.progress import bar
from whence.cli import options
from whence.cli.errors import sentences
from whence.inputs.sources import Source, expand

if TYPE_CHECKING:
    from whence.report.entry import Entry

EPILOG = """[bold]Examples[/bold]

    whence report photos/ --out report.html
    whence report photos/ --model ./my-vit --top 2 --methods gae,rollout:start_layer=1
    whence report reviews.csv --target positive --title "Reviews of May"
"""


def report(
    inputs: options.Inputs,
    out: Annotated[Path, typer.Option(help="The page's file.")] = Path("report.html"),
    model: options.Model = None,
    weights: options.Weights = None,
    target: options.Targets = None,
    top: options.Top = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas, with options if wanted: "
            "gae,rollout:start_layer=1. See `whence methods`. If left out, that of `whence "
            "explain`."
        ),
    ] = None,
    rules: options.Rules = "stable",
    unjudged: Annotated[
        bool,
        typer.Option(
            "--no-faithfulness",
            help="Do not measure how faithful maps are, which takes 18 forward passes for each "
            "input, class and method.",
        ),
    ] = False,
    title: Annotated[
        str | None, typer.Option(help="The page's heading; told by the inputs if left out.")
    ] = None,
    device: options.Device = None,
    batch: options.Batch = 16,
    memory: options.Memory = None,
    fast: options.Fast = False,
    precision: options.InPrecision = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what failed.")] = False,
    force: options.Force = False,
) -> None:
    """Make one page of many inputs, to look through and to send to someone.

    The page holds, for each photo or text, the classes with their probabilities, a map for each
    class and method, and how faithful the map is; it can be sorted and filtered, and needs nothing
    but itself. The exit code is 0 if everything was explained, 1 if some inputs failed, 2 if the
    request could not be met.
    """
    with sentences():
        sources = expand(inputs)
        # Imported only now: torch takes a second, and wrong names are told without it.
        from whence import pipeline as bulk
        from whence.methods.specification import choose
        from whence.report.build import ReportRequest, build_report

        how = bulk.How(
            methods=tuple(choose(methods or METHOD, rules)),
            model=model,
            weights=weights,
            device=device,
            targets=tuple(target or ()),
            top=top,
            batch=batch,
            memory=memory,
            fast=fast,
            precision=precision and precision.value,
        )
        heading = title if title is not None else _title(inputs, sources)
        request = ReportRequest(how, out, heading, not unjudged, force)
        with bar("Explaining", len(sources)) as advance:
            entries = build_report(request, sources, lambda _: advance(1))
    failed = [one for one in entries if one.error is not None]
    _tell(failed, len(entries), out, quiet)
    if failed:
        raise typer.Exit(1)


def _title(inputs: list[str], sources: list[Source]) -> str:
    if len(inputs) == 1:
        return Path(inputs[0]).resolve().name if sources[0].path or sources[0].row else "One text"
    return f"{len(sources)} inputs"


def _tell(failed: list[Entry], total: int, out: Path, quiet: bool) -> None:
    from whence._util.text import to_printable

    for one in failed:
        typer.echo(to_printable(f"{one.name}: {one.error}"), err=True)
    if not quiet:
        size = out.stat().st_size / 1e6
        done = total - len(failed)
        typer.echo(f"{done} of {total} inputs explained → {out} ({size:.2f} MB)")
