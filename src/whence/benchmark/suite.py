"""Run several benchmarks: each protocol on each model and each dataset that it fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whence._util.files import exists, is_file
from whence._util.progress import name_work
from whence.benchmark.output import BenchmarkResult, write_output
from whence.benchmark.overview import OverviewResult, write_overview
from whence.benchmark.overview.writing import has_ranked_figures
from whence.benchmark.plan import (
    DataSource,
    ModelSource,
    PlannedRun,
    SuitePlan,
    build_protocols,
    list_sources,
)
from whence.benchmark.preparing import (
    PreparedBenchmark,
    RunRequest,
)
from whence.benchmark.protocols.parsing import parse_protocols
from whence.benchmark.runner import compute_job
from whence.benchmark.shared_explanations import share_explanations
from whence.benchmark.sources import RunSources
from whence.benchmark.store import read_run_file
from whence.distributed.ray_cluster import RayOptions, start_ray
from whence.errors import WhenceError
from whence.methods import parse_methods
from whence.metrics.rankings import Ranking


@dataclass
class SuiteResult:
    """The result of several runs.

    Attributes:
        folder: The folder of the overview, with a folder for each run in it.
        runs: The result of each run, by its name.
        overview: The overview of all finished runs in the folder; None if no figure is ranked.
        unfit: Combinations that were left out because they do not fit, and why.
        left_out: Methods that were left out of a run, by its name, and why.
        failed: Runs that could not be finished, and why.
    """

    folder: Path
    runs: dict[str, BenchmarkResult] = field(default_factory=dict)
    overview: OverviewResult | None = None
    unfit: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def run_suite(
    protocols: str | Sequence[str],
    models: ModelSource | Sequence[ModelSource] = None,
    data: DataSource | Sequence[DataSource] = None,
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
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> SuiteResult:
    """Run each protocol on each model and dataset that it fits, and write an overview of all.

    Each run has a folder of its own in `out`, and is resumed there. A method that fails on a whole
    batch before it had any result is left out of that run; a run that fails does not end the
    others.

    Args:
        protocols: ``"srg:steps=20,saco"``, or a list of such texts.
        models: One or several, as for `whence.benchmark.run`.
        data: Likewise. A protocol that fits none of them and makes its own samples does so.
        methods: As for `whence.benchmark.run`; those that do not take a dataset's kind of inputs
            are left out there.
        format: Of all datasets.
        split: Of all datasets.
        limit: Of each run.
        seed: Of all.
        batch: How many samples go together.
        out: The folder. Finished runs that are there already are part of the overview.
        rules: As for `whence.benchmark.run`.
        device: Where to run.
        weights: A safetensors file, for a single model of timm or torchvision.
        compile: As for `whence.models.load`.
        precision: Likewise.
        ray: Whether actors of Ray compute the rows.
        ranking: Which test tells methods apart in the overview.
        tell: Is called with a sentence when a run begins.
        **options: Of the protocols that have them; those in the text of a protocol count first.

    Raises:
        WhenceError: Something is wrong with the request, or a protocol fits nothing.
    """
    judges = build_protocols(parse_protocols(protocols), options)
    request = RunRequest(methods, rules, limit, seed, batch, ray, ranking)
    request.check()
    named = list_sources(models)
    if weights is not None and len(named) > 1:
        raise WhenceError("--weights is for a single model.")
    given = RunSources(None, format, split, None, weights, device, compile, precision)
    plan = SuitePlan(judges, named, list_sources(data), given, request)
    steps = plan.list_steps()
    folder = Path(out) if out else Path("whence-benchmark", plan.folder_name)
    if exists(folder) and not folder.is_dir():
        raise WhenceError(f"'{folder}' is a file, not a folder; name another with --out.")
    result = SuiteResult(folder, unfit=plan.unfit)
    # One cluster for all runs, since it starts in seconds.
    cluster = start_ray(RayOptions() if ray is True else ray) if ray else nullcontext()
    with share_explanations(), cluster:
        for number, step in enumerate(steps, 1):
            title = f"Run {number} of {len(steps)}: {step.title}"
            if tell is not None:
                tell(title)
            with name_work(title):
                _run_step(plan.prepare(step), step, request, title, result)
    if any(has_ranked_figures(run.table) for run in result.runs.values()):
        result.overview = write_overview(folder, ranking=ranking)
    return result


def _run_step(
    prepared: PreparedBenchmark,
    step: PlannedRun,
    request: RunRequest,
    title: str,
    result: SuiteResult,
) -> None:
    """Compute one run and write its output; note what was left out or failed."""
    folder = _choose_folder(prepared, request, result.folder)
    job = replace(prepared.open_job(request, folder), drops_methods=True)
    given = _list_unfit_methods(request, prepared)
    if given:
        result.left_out[step.title] = given
    try:
        compute_job(job, step.sources, request.ray, title)
        if job.failed:
            result.left_out.setdefault(step.title, {}).update(job.failed)
            working = [method for method in job.methods if method.label not in job.failed]
            if not working:
                raise WhenceError(next(iter(job.failed.values())))
            job = replace(job, methods=working)
        result.runs[step.title] = write_output(job)
    except WhenceError as error:
        result.failed[step.title] = str(error)


def _list_unfit_methods(request: RunRequest, prepared: PreparedBenchmark) -> dict[str, str]:
    """Tell which methods of a request are not for the inputs of a run."""
    if request.methods is None:
        return {}
    kind = prepared.dataset.kind
    return {
        one.label: f"It does not explain {kind}s."
        for one in parse_methods(request.methods, request.rules)
        if kind not in one.description.inputs
    }


def _choose_folder(prepared: PreparedBenchmark, request: RunRequest, out: Path) -> Path:
    """Choose a folder inside of `out`; or that itself, if it is that of the same run."""
    if is_file(out / "run.json"):
        before = read_run_file(out / "run.json")["settings"]
        if before == json.loads(json.dumps(prepared.describe_settings(request))):
            return out
    return out / prepared.folder_name
