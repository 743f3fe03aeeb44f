"""Plan several benchmark runs: which protocols, models and datasets fit together."""

from __future__ import annotations

import copy
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from whence.benchmark.preparing import (
    PreparedBenchmark,
    RunRequest,
    UnfitError,
    check_kind,
    choose_sources,
    prepare_run,
)
from whence.benchmark.protocols import AnyProtocol, build_protocol
from whence.benchmark.protocols.options import list_option_types
from whence.benchmark.protocols.parsing import ProtocolSpecification
from whence.benchmark.sources import RunSources
from whence.benchmark.store import to_folder_name
from whence.errors import WhenceError
from whence.models import LoadedModel

if TYPE_CHECKING:
    from whence.datasets import Dataset

ModelSource: TypeAlias = "str | Path | LoadedModel | None"
DataSource: TypeAlias = "str | Path | Dataset | None"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan."""

    protocol: AnyProtocol
    sources: RunSources
    title: str
    folder_name: str


class SuitePlan:
    """Tells which combinations fit. One model is held at a time."""

    def __init__(
        self,
        protocols: Sequence[AnyProtocol],
        models: Sequence[ModelSource],
        data: Sequence[DataSource],
        sources: RunSources,
        request: RunRequest,
    ) -> None:
        self.unfit: dict[str, str] = {}
        self.folder_name = ""
        self._protocols, self._models, self._data = protocols, models, data
        self._sources, self._request = sources, request
        self._datasets: dict[str | Path, Dataset] = {}
        self._held: tuple[object, LoadedModel] | None = None

    def list_steps(self) -> list[PlannedRun]:
        """List the runs, model by model; a protocol that fits nothing is an error."""
        steps = self._check_all(self._protocols, self._data)
        for protocol in self._protocols:
            if any(step.protocol is protocol for step in steps):
                continue
            if None not in self._data and self._makes_data(protocol):
                steps += self._check_all([protocol], [None])
            if not any(step.protocol is protocol for step in steps):
                why = self._join_reasons(protocol)
                raise WhenceError(f"The {protocol.name} benchmark fits nothing here: {why}")
        self._refuse_equal_names(steps)
        # Model by model, so that each is loaded once more at most.
        steps.sort(key=lambda step: self._find_model_place(step.sources.model))
        return steps

    def prepare(self, step: PlannedRun) -> PreparedBenchmark:
        """Load what a run needs, and prepare it."""
        dataset = self._load_dataset(step.sources)
        loaded = self._load_model(step.sources, dataset)
        # A run may keep facts of its samples in its protocol.
        protocol = copy.deepcopy(step.protocol)
        return prepare_run(protocol, loaded, dataset, self._request, skip_methods=True)

    def _check_all(
        self, protocols: Sequence[AnyProtocol], data: Sequence[DataSource]
    ) -> list[PlannedRun]:
        steps: list[PlannedRun] = []
        names: dict[str, list[str]] = {"protocol": [], "data": [], "model": []}
        for model in self._models:
            for source in data:
                for protocol in protocols:
                    given = replace(self._sources, data=source, model=model)
                    step = self._check(protocol, given, names)
                    if step is not None:
                        steps.append(step)
        if not self.folder_name:
            parts = ("+".join(dict.fromkeys(found)) for found in names.values())
            self.folder_name = to_folder_name(*parts)
        return steps

    def _check(
        self, protocol: AnyProtocol, given: RunSources, names: dict[str, list[str]]
    ) -> PlannedRun | None:
        """Tell whether a combination fits; if not, note why."""
        sources = choose_sources(protocol, given, self._request)
        dataset = self._load_dataset(sources)
        model = Path(_name_model(sources.model)).name if sources.model else "the embedded model"
        try:
            check_kind(protocol, dataset)
            loaded = self._load_model(sources, dataset)
            model = Path(loaded.name).name
            prepared = prepare_run(protocol, loaded, dataset, self._request, skip_methods=True)
        except UnfitError as error:
            self.unfit[f"{protocol.label} · {dataset.name} · {model}"] = str(error)
            return None
        for key, name in zip(names, (protocol.name, dataset.name, model), strict=True):
            names[key].append(name)
        return PlannedRun(protocol, sources, prepared.title, prepared.folder_name)

    def _join_reasons(self, protocol: AnyProtocol) -> str:
        """Tell why a protocol fits nothing; where reasons differ, which is of what."""
        start = f"{protocol.label} · "
        reasons: dict[str, str] = {}
        for name, why in self.unfit.items():
            if name.startswith(start):
                reasons.setdefault(why, name.removeprefix(start))
        if len(reasons) == 1:
            return next(iter(reasons))
        return " ".join(f"({name}) {why}" for why, name in reasons.items())

    def _load_dataset(self, sources: RunSources) -> Dataset:
        """Load a dataset, once."""
        if not isinstance(sources.data, str | Path):
            return sources.load_dataset()
        if sources.data not in self._datasets:
            dataset = sources.load_dataset()
            if any(dataset.name == other.name for other in self._datasets.values()):
                # Datasets of some formats are all called so: the folder tells them apart.
                dataset.name += f"-{Path(sources.data).resolve().name}"
            self._datasets[sources.data] = dataset
        return self._datasets[sources.data]

    def _load_model(self, sources: RunSources, dataset: Dataset) -> LoadedModel:
        """Load a model, unless it is the last one that was loaded."""
        if isinstance(sources.model, LoadedModel):
            return sources.model
        of_data = (dataset.kind, dataset.name) if sources.model is None else None
        key = (_name_model(sources.model), of_data)
        if self._held is None or self._held[0] != key:
            if self._held is not None:
                self._held = None  # free its memory before the next one needs it
                gc.collect()
            self._held = (key, sources.load_model(dataset))
        return self._held[1]

    def _makes_data(self, protocol: AnyProtocol) -> bool:
        return protocol.make_dataset(self._request.seed, 1) is not None

    def _find_model_place(self, model: ModelSource) -> int:
        names = list(map(_name_model, self._models))
        name = _name_model(model)
        return names.index(name) if name in names else len(names)

    def _refuse_equal_names(self, steps: Sequence[PlannedRun]) -> None:
        by_name: dict[str, PlannedRun] = {}
        for step in steps:
            other = by_name.setdefault(step.folder_name.lower(), step)
            if other is not step:
                sources = [f"{_name_model(one.sources.model)}" for one in (other, step)]
                same = sources[0] == sources[1]
                what = "datasets" if same else "models"
                pair = [str(one.sources.data) for one in (other, step)] if same else sources
                raise WhenceError(
                    f"Two {what} have one name, '{pair[0]}' and '{pair[1]}': their runs could not "
                    f"be told apart. Rename one of the folders."
                )


def build_protocols(
    specifications: Sequence[ProtocolSpecification], options: Mapping[str, object]
) -> list[AnyProtocol]:
    """Build protocols; `options` are for those that have them, and some one has each.

    Raises:
        WhenceError: An option or a value is wrong, or two protocols are the same.
    """
    given = {name: value for name, value in options.items() if value is not None}
    built: dict[str, AnyProtocol] = {}
    used = {"classes"}
    for name, own in specifications:
        probe = build_protocol(name, own)
        known = {*list_option_types(type(probe)), "classes"}
        used |= known
        shared = {option: value for option, value in given.items() if option in known}
        judge = build_protocol(name, shared | own)
        if judge.label in built:
            raise WhenceError(f"The benchmark '{judge.label}' is named twice.")
        built[judge.label] = judge
    for option in given:
        if option not in used:
            listed = ", ".join(dict.fromkeys(one.name for one in specifications))
            raise WhenceError(f"None of the benchmarks {listed} has an option '{option}'.")
    return list(built.values())


def list_sources(given: Any) -> list[Any]:
    """A list of models or datasets; one that is named twice counts once."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    keys = [str(one) if isinstance(one, str | Path) else id(one) for one in listed]
    return list(dict(zip(keys, listed, strict=True)).values()) or [None]


def _name_model(model: ModelSource) -> str:
    if model is None:
        return ""
    return model.name if isinstance(model, LoadedModel) else str(model)
