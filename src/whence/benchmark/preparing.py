"""Prepare one benchmark run: load what it needs, refuse what does not fit, open its folder."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from whence._util.extras import import_extra
from whence._util.fingerprint import hash_weights
from whence.benchmark.job import BenchmarkJob
from whence.benchmark.protocols import AnyProtocol
from whence.benchmark.sources import RunSources
from whence.benchmark.store import ResultStore, to_folder_name
from whence.benchmark.stored import StoredMethod, check_model, choose_methods
from whence.distributed.ray_cluster import RayOptions
from whence.errors import WhenceError
from whence.methods import MethodSpecification, parse_methods
from whence.metrics.rankings import Ranking, check_ranking
from whence.models import LoadedModel
from whence.models.folder import EMBEDDED_LANGUAGE_MODEL

if TYPE_CHECKING:
    from whence.datasets import Dataset

# How many samples are tried before a dataset is refused.
_TRIED_SAMPLES = 20


class UnfitError(WhenceError):
    """A protocol, a model, a dataset and methods that do not fit together."""


@dataclass(frozen=True)
class RunRequest:
    """What is asked of a run, or of several, apart from protocol, model and dataset.

    The fields are arguments of `whence.benchmark.run`.
    """

    methods: str | Sequence[str] | None = None
    rules: str = "stable"
    limit: int | None = None
    seed: int = 0
    batch: int = 16
    ray: RayOptions | bool = False
    ranking: Ranking = "nemenyi"

    def check(self) -> None:
        """Refuse what is wrong by itself, before anything is read."""
        if self.methods is not None:
            parse_methods(self.methods, self.rules)
        if self.batch < 1 or (self.limit is not None and self.limit < 1):
            raise WhenceError("The batch and the limit are numbers from 1.")
        check_ranking(self.ranking)
        if self.ray:
            import_extra("ray", "ray", "ray")


@dataclass(frozen=True)
class PreparedBenchmark:
    """A run whose model and data fit: what is judged, on which samples."""

    protocol: AnyProtocol
    loaded: LoadedModel
    dataset: Dataset
    methods: list[MethodSpecification]
    names: list[str]

    @property
    def folder_name(self) -> str:
        """The name of the folder of the run, among those of others."""
        model = Path(self.loaded.name).name
        return to_folder_name(self.protocol.label, self.dataset.name, model)

    @property
    def title(self) -> str:
        """The run in a sentence."""
        return f"{self.protocol.label} · {self.dataset.name} · {Path(self.loaded.name).name}"

    def describe_settings(self, request: RunRequest) -> dict[str, object]:
        """What the results depend on."""
        return {
            "protocol": self.protocol.name,
            **self.protocol.list_options(),
            "model weights": hash_weights(self.loaded.model),
            "dataset": self.dataset.name,
            "dataset fingerprint": self.dataset.compute_fingerprint(),
            "limit": request.limit,
            "seed": request.seed,
            "rules": request.rules,
            "precision": self.loaded.precision,
        }

    def open_job(self, request: RunRequest, folder: Path) -> BenchmarkJob:
        """Open the folder of the run, which is that of the same run or new.

        Raises:
            WhenceError: It is that of another run, or cannot be written.
        """
        store = ResultStore(folder, self.describe_settings(request))
        self.protocol.start(self.names, request.seed)
        given = (self.protocol, self.loaded, self.dataset, self.methods, self.names, store)
        return BenchmarkJob(*given, request.batch, request.seed, request.ranking)


def choose_sources(protocol: AnyProtocol, sources: RunSources, request: RunRequest) -> RunSources:
    """Fill in what the protocol brings where nothing was named: its dataset, its model."""
    if request.ray and isinstance(sources.model, LoadedModel):
        raise WhenceError("With Ray, every process loads the model: give its name or folder.")
    if sources.data is None:
        made = protocol.make_dataset(request.seed, request.limit)
        if made is None:
            raise WhenceError(
                f"The {protocol.name} benchmark needs a dataset: name its folder or file with "
                f"--data."
            )
        sources = replace(sources, data=made)
    if sources.model is None and protocol.for_language_models:
        sources = replace(sources, model=EMBEDDED_LANGUAGE_MODEL)
    return sources


def check_kind(protocol: AnyProtocol, dataset: Dataset) -> None:
    """Refuse a dataset of a kind that the protocol does not judge."""
    if dataset.kind not in protocol.kinds:
        raise UnfitError(protocol.describe_wrong_kind(dataset.kind))


def prepare_run(
    protocol: AnyProtocol,
    loaded: LoadedModel,
    dataset: Dataset,
    request: RunRequest,
    *,
    skip_methods: bool = False,
) -> PreparedBenchmark:
    """Prepare a run of what was loaded.

    Args:
        protocol: With its options.
        loaded: The model.
        dataset: The dataset.
        request: What is asked.
        skip_methods: Whether methods for other kinds of inputs are left out, rather than refused.

    Raises:
        UnfitError: These do not fit together.
        WhenceError: Something else is wrong with them.
    """
    check_kind(protocol, dataset)
    chosen = choose_methods(request.methods, request.rules, dataset, protocol)
    methods = _seed_methods(chosen, request.seed)
    check_model(loaded, dataset)
    names = draw_names(dataset.list_names(), request.limit, request.seed)
    dataset.announce(names)
    fitting = [one for one in methods if dataset.kind in one.description.inputs]
    if len(fitting) < len(methods) and not (skip_methods and fitting):
        method = next(one for one in methods if one not in fitting)
        kinds = " and ".join(method.description.inputs)
        raise UnfitError(f"Method '{method.name}' explains {kinds}s only, not {dataset.kind}s.")
    _check_samples(protocol, loaded, dataset, names)
    protocol.labels.check(loaded)
    return PreparedBenchmark(protocol, loaded, dataset, fitting, names)


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
    if unfit:
        raise UnfitError(str(unfit[0])) from unfit[0]
    raise unreadable or WhenceError("The dataset holds no sample.")
