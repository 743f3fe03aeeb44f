"""The command `whence benchmark`: compare methods by protocols, on models and datasets."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand
from typing_extensions import override

from whence.cli import options
from whence.cli.protocol_list import format_protocols, list_protocols
from whence.errors import WhenceError

EPILOG = """[bold]Protocols[/bold]

{protocols}

[bold]Examples[/bold]

    whence benchmark perturbation --model ./my-vit --data imagenet/ --methods whence,gae --limit 50
    whence benchmark srg:steps=10,saco,segmentation --model ./my-vit --model ./other --data pets/
    whence benchmark perturbation:fill=zero+blur --data photos/ --methods whence,random
    whence benchmark rationale --model ./my-bert --data movies/ --methods whence,random --split test
    whence benchmark overview --data runs/ --data more-runs/ --out both/
    whence benchmark perturbation --model ./my-vit --data imagenet/ --ray --actors 8"""

_PANEL = "Of one protocol"
# Instead of a protocol: no run, but the overview of runs that have finished.
_OVERVIEW = "overview"


class BenchmarkCommand(TyperCommand):
    """The command, whose --help lists the protocols."""

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:  # types of Typer that are private
        self.epilog = EPILOG.format(protocols=format_protocols())
        super().format_help(ctx, formatter)


def _complete_protocol(incomplete: str) -> list[str]:
    return [name for name in (*list_protocols(), _OVERVIEW) if name.startswith(incomplete)]


def benchmark(
    protocol: Annotated[
        str,
        typer.Argument(
            metavar="PROTOCOLS",
            help="How explanations are judged: one or several of the protocols below, separated by "
            "commas, with options if wanted: srg:steps=10,perturbation:fill=zero+blur. Or "
            "overview: no run, but the overview of finished runs in the folders --data.",
            autocompletion=_complete_protocol,
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="The folder or file of the dataset; a folder of photos needs no labels. Of a "
            "folder of results, which `whence explain --format parquet` wrote, the stored scores "
            "are judged. Protocols that make samples of their own need none. May be repeated.",
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
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A folder that transformers saved to, a name on the hub, timm:NAME or "
            "torchvision:NAME; see `whence models`. Without it, the embedded model that suits the "
            "data. May be repeated.",
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
            help="The folder of the run, or of several with a folder for each; given again, they "
            "go on where they stopped.",
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
            help="perturbation, srg, saco, f_fidelity: what replaces them: zero, mean, blur, "
            "dataset (its mean colour), road (interpolated); of perturbation several, separated by "
            "commas.",
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
            metavar="NAME",
            rich_help_panel=_PANEL,
            help="segmentation: the threshold of maps; mean if left out.",
        ),
    ] = None,
    view: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_PANEL,
            help="segmentation, localization: crop photos as the model does, or show the whole.",
        ),
    ] = None,
    radius: Annotated[
        float | None,
        typer.Option(rich_help_panel=_PANEL, help="trust: how far noise moves inputs; 0.02."),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=_PANEL,
            help="trust: how often noise is drawn; 10. f_fidelity: how often units are; 5.",
        ),
    ] = None,
    cascade: Annotated[
        int | None,
        typer.Option(
            min=0, rich_help_panel=_PANEL, help="trust: how many samples see random layers; 8."
        ),
    ] = None,
    ranking: Annotated[
        Literal["nemenyi", "wilcoxon"],
        typer.Option(
            rich_help_panel=options.METHOD_PANEL,
            help="How the overview tells methods apart: by Nemenyi's critical difference, or by "
            "Wilcoxon's test of each two, Holm-corrected.",
        ),
    ] = "nemenyi",
    ray: options.Ray = False,
    address: options.Address = None,
    actors: options.Actors = None,
    cpus_per_actor: options.CpusPerActor = 1.0,
    gpus_per_actor: options.GpusPerActor = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table.")] = False,
) -> None:
    """Judge methods: tables with intervals and tests, curves, ranks, a page.

    Several protocols, models and datasets are run in all combinations that fit, and an overview
    tells which method is best on average, where it is beaten, and how the protocols agree. Results
    are kept in the folder as they come, so a run that was stopped goes on when it is started again,
    also with further methods, models and protocols. Records that cannot be read are named and
    skipped. The exit code is 0 if all tables were made, 2 if not, 130 if it was interrupted.
    """
    from whence.benchmark.overview import write_overview
    from whence.benchmark.overview.writing import is_suite
    from whence.benchmark.protocols.parsing import parse_protocols
    from whence.benchmark.runner import run
    from whence.benchmark.suite import run_suite
    from whence.cli.benchmark_output import print_overview, print_run, print_suite

    models: list[str | None] = [*model] if model else [None]
    datasets: list[str | None] = [*data] if data else [None]
    if protocol == _OVERVIEW:
        given = {"--methods": methods, "--model": model, "--limit": limit, "--format": data_format}
        unused = [name for name, value in given.items() if value is not None]
        if unused:
            raise WhenceError(f"The overview is of finished runs, and takes no {unused[0]}.")
        written = write_overview(data or [], out, ranking=ranking)
        if not quiet:
            print_overview(written)
        return
    if _OVERVIEW in protocol.replace(":", ",").split(","):
        raise WhenceError("'overview' stands alone; several protocols write one anyway.")
    cluster = options.read_ray_options(ray, address, actors, cpus_per_actor, gpus_per_actor)
    shared: dict[str, Any] = {
        "format": data_format,
        "split": split,
        "limit": limit,
        "seed": seed,
        "batch": batch,
        "out": out,
        "rules": rules,
        "device": device,
        "weights": weights,
        "compile": compile,
        "precision": precision,
        "ray": cluster or False,
        "ranking": ranking,
        "classes": classes,
        "unit": unit,
        "fill": fill,
        "score": score,
        "insertion": insertion,
        "threshold": threshold,
        "view": view,
        "radius": radius,
        "draws": draws,
        "cascade": cascade,
    }
    several = len(parse_protocols(protocol)) > 1 or len(models) > 1 or len(datasets) > 1
    try:
        if several or (out is not None and is_suite(out)):
            tell = None if quiet else functools.partial(typer.echo, err=True)
            suite = run_suite(protocol, models, datasets, methods, tell=tell, **shared)
            print_suite(suite, quiet)
            if suite.failed:
                raise typer.Exit(2)
        else:
            print_run(run(protocol, models[0], datasets[0], methods, **shared), quiet)
    except KeyboardInterrupt:
        typer.echo("Stopped. Finished samples are kept; the same command continues.", err=True)
        raise typer.Exit(130) from None
