"""The command `whence benchmark`: compare methods on a dataset by a protocol."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from whence._util.text import to_printable
from whence.cli import options

EPILOG = """[bold]Examples[/bold]

    whence benchmark perturbation --model ./my-vit --data imagenet/ --methods whence,gae --limit 50
    whence benchmark segmentation --model ./my-vit --data pets/ --methods rollout:start_layer=1
    whence benchmark rationale --model ./my-bert --data movies/ --methods whence,random --split test
    whence benchmark trust --data photos/ --methods tiba,tiba:rules=reference --limit 50
    whence benchmark perturbation --model ./my-vit --data imagenet/ --ray --actors 8"""


_PROTOCOLS = ("perturbation", "segmentation", "rationale", "trust")
_PANEL = "Of one protocol"


def _complete_protocol(incomplete: str) -> list[str]:
    return [name for name in _PROTOCOLS if name.startswith(incomplete)]


def benchmark(
    protocol: Annotated[
        str,
        typer.Argument(
            metavar="PROTOCOL",
            help="perturbation (photos), segmentation (photos with masks or boxes), rationale "
            "(texts), or trust (both).",
            autocompletion=_complete_protocol,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The folder or file of the dataset; a folder of photos needs no labels. Of a "
            "folder of results, which `whence explain --format parquet` wrote, the stored scores "
            "are judged. Protocols that make samples of their own need none.",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Methods, separated by commas, with options if wanted: gae,rollout:start_layer=1. "
            "See `whence methods`. If left out, whence, or the stored one of results.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A folder that transformers saved to, a name on the hub, timm:NAME or "
            "torchvision:NAME; see `whence models`. Without it, the embedded model that suits the "
            "data.",
        ),
    ] = None,
    weights: options.Weights = None,
    data_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", help="The dataset's format; found by its files if left out."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="The dataset's split, such as test.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How many samples, drawn at random by the seed."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The seed of random numbers.")] = 0,
    batch: options.Batch = 16,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The folder of the run; given again, the run goes on where it stopped.",
        ),
    ] = None,
    rules: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=options.METHOD_PANEL,
            help="How relevance passes operations, for methods that do not say.",
        ),
    ] = "stable",
    device: options.Device = None,
    compile: options.Compile = False,
    precision: options.Precision = None,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL=CLASS,…",
            help="The model's classes for labels, where names differ: NEG=0,POS=1.",
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            rich_help_panel=_PANEL,
            help="perturbation, srg, saco: the units to delete, pixels or patches; of perturbation "
            "both, separated by a comma.",
        ),
    ] = None,
    fill: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            rich_help_panel=_PANEL,
            help="perturbation, srg, saco: what replaces them: zero, mean, blur, dataset (its mean "
            "colour), road (interpolated); of perturbation several, separated by commas.",
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            rich_help_panel=_PANEL,
            help="perturbation: what is under the curves: accuracy, probability or logit, or "
            "several, separated by commas; accuracy if left out.",
        ),
    ] = None,
    insertion: Annotated[
        bool | None,
        typer.Option(
            "--insertion",
            rich_help_panel=_PANEL,
            help="perturbation: measure insertion and deletion too.",
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_PANEL, help="segmentation: the threshold of maps; mean if left out."
        ),
    ] = None,
    view: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_PANEL,
            help="segmentation: crop photos as the model does, or show it the whole.",
        ),
    ] = None,
    radius: Annotated[
        float | None,
        typer.Option(rich_help_panel=_PANEL, help="trust: how far noise moves inputs; 0.02."),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel=_PANEL, help="trust: how often noise is drawn; 10."),
    ] = None,
    cascade: Annotated[
        int | None,
        typer.Option(
            min=0, rich_help_panel=_PANEL, help="trust: how many samples see random layers; 8."
        ),
    ] = None,
    ray: options.Ray = False,
    address: options.Address = None,
    actors: options.Actors = None,
    cpus_per_actor: options.CpusPerActor = 1.0,
    gpus_per_actor: options.GpusPerActor = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table.")] = False,
) -> None:
    """Judge methods on a dataset: a table with intervals and tests, curves, a page.

    Results are kept in the folder as they come, so a run that was stopped goes on when it is
    started again, also with further methods. Records that cannot be read are named and skipped. The
    exit code is 0 if the table was made, 2 if not, 130 if it was interrupted.
    """
    from whence.benchmark.formats import to_terminal
    from whence.benchmark.runner import run

    cluster = options.read_ray_options(ray, address, actors, cpus_per_actor, gpus_per_actor)
    try:
        outcome = run(
            protocol,
            model,
            data,
            methods,
            format=data_format,
            split=split,
            limit=limit,
            seed=seed,
            batch=batch,
            out=out,
            rules=rules,
            device=device,
            weights=weights,
            compile=compile,
            precision=precision,
            ray=cluster or False,
            classes=classes,
            unit=unit,
            fill=fill,
            score=score,
            insertion=insertion,
            threshold=threshold,
            view=view,
            radius=radius,
            draws=draws,
            cascade=cascade,
        )
    except KeyboardInterrupt:
        typer.echo("Stopped. Finished samples are kept; the same command continues.", err=True)
        raise typer.Exit(130) from None
    for damaged in outcome.set_aside:
        typer.echo(f"'{damaged}' was damaged; it was set aside and computed again.", err=True)
    for line in _describe_skipped(outcome.skipped):
        typer.echo(to_printable(line), err=True)
    if quiet:
        return
    console = options.open_console()
    console.print(to_terminal(outcome.table))
    for note in outcome.table.notes:
        console.print(note)
    console.print(f"→ {outcome.folder / 'report.html'}", soft_wrap=True)


def _describe_skipped(skipped: Mapping[str, str]) -> list[str]:
    """A line for each reason why samples were skipped, with their number and the first of them."""
    reasons: dict[str, list[str]] = {}
    for name, error in skipped.items():
        reasons.setdefault(error.replace(name, ""), []).append(name)
    return [
        f"Skipped {names[0]}: {skipped[names[0]]}"
        + (f" ({len(names)} samples)" if len(names) > 1 else "")
        for names in reasons.values()
    ]
