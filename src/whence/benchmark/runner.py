"""Run a benchmark: judge methods on a dataset, resume an earlier run, write the results."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence._util.extras import import_extra
from whence._util.fingerprint import hash_weights
from whence.benchmark.job import BenchmarkJob
from whence.benchmark.missing import compute_missing_rows
from whence.benchmark.output import BenchmarkResult, write_output
from whence.benchmark.protocols import AnyProtocol, build_protocol
from whence.benchmark.protocols.parsing import parse_protocol
from whence.benchmark.ray_rows import compute_rows_with_ray
from whence.benchmark.sources import RunSources
from whence.benchmark.store import ResultStore, to_file_name
from whence.benchmark.stored import StoredMethod, check_model, choose_methods
from whence.distributed.ray_cluster import RayOptions
from whence.errors import WhenceError
from whence.methods import MethodSpecification, parse_methods
from whence.models import LoadedModel
from whence.models.loaded import EMBEDDED_LANGUAGE_MODEL

if TYPE_CHECKING:
    from whence.datasets import Dataset

# How many samples are tried before a dataset is refused.
_TRIED_SAMPLES = 20


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
        **options: Of the protocol, such as ``fill="blur"``; and ``classes``, what the dataset's
            labels are called by the model.

    Returns:
        The table, also written to the folder as table.md, table.csv, table.tex, curves.png and
        report.html.

    Raises:
        WhenceError: Something is wrong with the request, the model, the data or the folder. What
            was computed stays in the folder.
    """
    specification = parse_protocol(protocol)
    judge = build_protocol(specification.name, options | specification.options)
    if methods is not None:
        parse_methods(methods, rules)  # a wrong name is refused before anything is read
    if batch < 1 or (limit is not None and limit < 1):
        raise WhenceError("The batch and the limit are numbers from 1.")
    if ray:
        import_extra("ray", "ray", "ray")  # a missing library is told before the model is loaded
        if isinstance(model, LoadedModel):
            raise WhenceError("With Ray, every process loads the model: give its name or folder.")
    if data is None:
        data = _make_dataset(judge, seed, limit)
    if model is None and judge.for_language_models:
        model = EMBEDDED_LANGUAGE_MODEL
    sources = RunSources(data, format, split, model, weights, device, compile, precision)
    dataset = sources.load_dataset()
    if dataset.kind not in judge.kinds:
        raise WhenceError(judge.describe_wrong_kind(dataset.kind))
    chosen = _seed_methods(choose_methods(methods, rules, dataset, judge), seed)
    loaded = sources.load_model(dataset)
    check_model(loaded, dataset)
    names = draw_names(dataset.list_names(), limit, seed)
    dataset.announce(names)
    for method in chosen:
        if dataset.kind not in method.description.inputs:
            kinds = " and ".join(method.description.inputs)
            refused = f"Method '{method.name}' explains {kinds}s only, not {dataset.kind}s."
            raise WhenceError(refused)
    _check_samples(judge, loaded, dataset, names)
    judge.labels.check(loaded)
    title = to_file_name(f"{judge.name}-{dataset.name}-{Path(loaded.name).name}")
    settings = {
        "protocol": judge.name,
        **judge.list_options(),
        "model weights": hash_weights(loaded.model),
        "dataset": dataset.name,
        "dataset fingerprint": dataset.compute_fingerprint(),
        "limit": limit,
        "seed": seed,
        "rules": rules,
        "precision": loaded.precision,
    }
    store = ResultStore(Path(out) if out else Path("whence-benchmark", title), settings)
    judge.start(names, seed)
    job = BenchmarkJob(judge, loaded, dataset, chosen, names, store, batch, seed)
    job.write_state("running")
    try:
        judge.fit(loaded, dataset, names, store.folder)
        if ray:
            compute_rows_with_ray(job, sources, RayOptions() if ray is True else ray)
        else:
            compute_missing_rows(job)
    except BaseException:
        if not store.has_files():
            # There is no result yet, so the folder is free for other settings.
            with suppress(WhenceError):
                job.write_state("stopped")
        raise
    return write_output(job)


def _make_dataset(protocol: AnyProtocol, seed: int, limit: int | None) -> Dataset:
    made = protocol.make_dataset(seed, limit)
    if made is None:
        raise WhenceError(
            f"The {protocol.name} benchmark needs a dataset: name its folder or file with --data."
        )
    return made


def draw_names(names: Sequence[str], limit: int | None, seed: int) -> list[str]:
    """Draw some of the names at random, fixed by the seed and the names, in their own order."""
    if limit is None or limit >= len(names):
        return list(names)
    listed = hashlib.sha256("\0".join([str(seed), *sorted(names)]).encode("utf-8", "replace"))
    chosen = set(random.Random(listed.digest()).sample(sorted(names), limit))
    return [name for name in names if name in chosen]


def _seed_methods(methods: list[MethodSpecification], seed: int) -> list[MethodSpecification]:
    """Give the run's seed to methods that draw random numbers and were given no seed."""
    return [
        MethodSpecification(one.label, one.name, {"seed": seed, **one.options}, one.rules)
        if "seed" in one.description.options and not isinstance(one, StoredMethod)
        else one
        for one in methods
    ]


def _check_samples(
    protocol: AnyProtocol, loaded: LoadedModel, dataset: Dataset, names: Sequence[str]
) -> None:
    """Refuse a model and a dataset that do not fit together, before any work."""
    unreadable: WhenceError | None = None
    unfit: list[WhenceError] = []
    for name in names:
        try:
            sample = dataset.read(name)
        except WhenceError as error:
            unreadable = unreadable or error
            continue
        try:
            protocol.check(loaded, dataset.kind, sample)
        except WhenceError as error:
            unfit.append(error)
            if len(unfit) < _TRIED_SAMPLES:
                continue
            break
        return
    raise unfit[0] if unfit else unreadable or WhenceError("The dataset holds no sample.")
