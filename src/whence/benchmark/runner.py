"""Run a benchmark: judge methods on a dataset, resume an earlier run, write the results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.benchmark.job import BenchmarkJob
from whence.benchmark.missing import compute_missing_rows
from whence.benchmark.output import BenchmarkResult, write_output
from whence.benchmark.preparing import (
    RunRequest,
    check_kind,
    choose_sources,
    draw_names,
    prepare_run,
)
from whence.benchmark.protocols import build_protocol
from whence.benchmark.protocols.parsing import parse_protocol
from whence.benchmark.ray_rows import compute_rows_with_ray
from whence.benchmark.sources import RunSources
from whence.benchmark.store import to_file_name
from whence.benchmark.stored import choose_methods
from whence.distributed.ray_cluster import RayOptions
from whence.errors import WhenceError
from whence.metrics.rankings import Ranking
from whence.models import LoadedModel

if TYPE_CHECKING:
    from whence.datasets import Dataset

__all__ = ["compute_job", "draw_names", "run"]


def run(
    protocol: str,
    model: str | Path | LoadedModel | None = None,
    data: str | Path | Dataset | None = None,
    methods: str | Sequence[str] | None = None,
    *,
    format: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch: int = 16,
    out: str | Path | None = None,
    rules: str = "stable",
    device: str | None = None,
    weights: str | Path | None = None,
    compile: bool = False,
    precision: str | None = None,
    ray: RayOptions | bool = False,
    ranking: Ranking = "nemenyi",
    **options: Any,
) -> BenchmarkResult:
    """Judge methods on a dataset; a folder of an earlier run is resumed.

    Args:
        protocol: One of `whence.benchmark.PROTOCOLS`, with options if wanted: ``"srg:steps=20"``.
        model: A folder, a name on the hub, ``timm:NAME``, ``torchvision:NAME``, what
            `whence.models.load` returned, or None for the embedded model that suits the data.
        data: Where the dataset is, or a dataset; or a folder of results, whose stored scores are
            then judged as a method. Protocols that make samples of their own need none.
        methods: Methods, with options if wanted: ``"tiba,rollout:start_layer=1"``. If left out, the
            stored one of a result, or ``"whence"``.
        format: Of the dataset; recognised by its files if left out.
        split: Of the dataset.
        limit: Use only so many samples, drawn at random, the same for the same seed.
        seed: Of the draw, of methods that draw, of intervals and tests.
        batch: How many samples go together.
        out: The folder for results; named after protocol, dataset and model if left out.
        rules: How relevance passes operations, for methods that do not say.
        device: Where to run.
        weights: A safetensors file, for models of timm and torchvision.
        compile: As for `whence.models.load`, where the model is not loaded yet.
        precision: Likewise.
        ray: Whether actors of Ray compute the rows, and on which cluster; the model is then given
            by its name, and paths must mean the same on every machine.
        ranking: Which test tells methods apart in the overview: Nemenyi's, or Wilcoxon's,
            Holm-corrected.
        **options: Of the protocol, such as ``fill="blur"``; and ``classes``, what the dataset's
            labels are called by the model.

    Returns:
        The table, also written to the folder as table.md, table.csv, table.tex, curves.png and
        report.html, with the overview of its ranked figures (overview.md, …).

    Raises:
        WhenceError: Something is wrong with the request, the model, the data or the folder. What
            was computed stays in the folder.
    """
    for what, given in (("models", model), ("datasets", data)):
        if isinstance(given, list | tuple):
            raise WhenceError(f"`whence.benchmark.run_suite` takes several {what}; name one here.")
    specification = parse_protocol(protocol)
    judge = build_protocol(specification.name, options | specification.options)
    request = RunRequest(methods, rules, limit, seed, batch, ray, ranking)
    request.check()
    named = RunSources(data, format, split, model, weights, device, compile, precision)
    sources = choose_sources(judge, named, request)
    dataset = sources.load_dataset()
    check_kind(judge, dataset)
    choose_methods(methods, rules, dataset, judge)  # refused before the model is loaded
    prepared = prepare_run(judge, sources.load_model(dataset), dataset, request)
    default = f"{judge.name}-{dataset.name}-{Path(prepared.loaded.name).name}"
    folder = Path(out) if out else Path("whence-benchmark", to_file_name(default))
    job = prepared.open_job(request, folder)
    compute_job(job, sources, ray)
    return write_output(job)


def compute_job(
    job: BenchmarkJob, sources: RunSources, ray: RayOptions | bool, title: str = ""
) -> None:
    """Compute the rows that a run lacks, with a bar that shows `title`.

    Raises:
        WhenceError: It cannot go on; what was computed stays in the folder.
    """
    job.write_state("running")
    title = title or f"Benchmark: {job.protocol.name}"
    try:
        job.protocol.fit(job.loaded, job.dataset, job.names, job.store.folder)
        if ray:
            compute_rows_with_ray(job, sources, RayOptions() if ray is True else ray, title)
        else:
            compute_missing_rows(job, title)
    except BaseException:
        if not job.store.has_files():
            # There is no result yet, so the folder is free for other settings.
            with suppress(WhenceError):
                job.write_state("stopped")
        raise
