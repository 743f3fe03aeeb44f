"""Methods × metrics over a dataset: running, resuming, writing the results."""  # noqa: RUF002

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from whence import datasets
from whence._util.defaults import METHOD
from whence._util.fingerprint import hash_weights, list_versions
from whence._util.progress import bar
from whence._util.text import to_printable
from whence.benchmark import curves, formats, report
from whence.benchmark.columns import Columns
from whence.benchmark.hashes import drawn, slug
from whence.benchmark.protocols import Protocol, build
from whence.benchmark.protocols.base import Row
from whence.benchmark.reading import Broken, batches
from whence.benchmark.store import Store
from whence.benchmark.table import Table, tabulate
from whence.errors import WhenceError
from whence.methods.specification import Chosen, choose
from whence.models import LoadedModel, load
from whence.models.forward import MemoryShortError

if TYPE_CHECKING:
    from whence.datasets import Dataset

# How many samples are looked at before a dataset is said not to suit.
_LOOKED_AT = 20
_TOLD = 5


@dataclass(frozen=True)
class Outcome:
    """What a run found.

    Attributes:
        table: The figures.
        folder: Where everything is.
        results: For each method its rows, as columns.
        skipped: Samples that were left out, and why.
        set_aside: Result files that were damaged and have been computed again.
    """

    table: Table
    folder: Path
    results: dict[str, Columns]
    skipped: dict[str, str]
    set_aside: list[str]


def run(
    protocol: str,
    model: str | Path | LoadedModel | None = None,
    data: str | Path | Dataset = ".",
    methods: str | Sequence[str] = METHOD,
    *,
    format: str | None = None,  # noqa: A002
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch: int = 16,
    out: str | Path | None = None,
    rules: str = "stable",
    device: str | None = None,
    weights: str | Path | None = None,
    fast: bool = False,
    precision: str | None = None,
    **options: Any,
) -> Outcome:
    """Judge methods on a dataset, continuing where an earlier run of the same folder stopped.

    Args:
        protocol: ``"perturbation"``, ``"segmentation"``, ``"rationale"`` or ``"trust"``.
        model: A folder, a name on the hub, ``timm:NAME``, ``torchvision:NAME``, what
            `whence.models.load` returned, or None for the embedded model that suits the data.
        data: Where the dataset is, or a dataset.
        methods: Methods, with options if wanted: ``"tiba,rollout:start_layer=1"``.
        format: Of the dataset; told by its files if left out.
        split: Of the dataset.
        limit: Use only so many samples, drawn at random, the same for the same seed.
        seed: Of the draw, of methods that draw, of intervals and tests.
        batch: How many samples go together.
        out: The folder for results; named after protocol, dataset and model if left out.
        rules: How relevance passes operations, for methods that do not say.
        device: Where to run.
        weights: A safetensors file, for models of timm and torchvision.
        fast: As for `whence.models.load`, where the model is not loaded yet.
        precision: Likewise.
        **options: Of the protocol, such as ``fill="blur"``; and ``classes``, what the dataset's
            labels are called by the model.

    Returns:
        The table, also written to the folder as table.md, table.csv, table.tex, curves.png and
        report.html.

    Raises:
        WhenceError: Something is wrong with the request, the model, the data or the folder. What
            was computed stays in the folder.
    """
    judged = build(protocol, options)
    chosen = _seeded(choose(methods, rules), seed)
    if batch < 1 or (limit is not None and limit < 1):
        raise WhenceError("The batch and the limit are numbers from 1.")
    dataset = datasets.load(data, format, split) if isinstance(data, str | Path) else data
    if dataset.kind not in judged.kinds:
        raise WhenceError(judged.wrong_kind(dataset.kind))
    if isinstance(model, LoadedModel):
        loaded = model
    else:
        kind = None if model else dataset.kind
        loaded = load(model, kind, weights, device, fast=fast, precision=precision)
    names = drawn(dataset.names(), limit, seed)
    _check(judged, loaded, dataset, names, chosen)
    judged.labels.check(loaded)
    name = Path(loaded.name).name
    title = slug(f"{protocol}-{dataset.name}-{name}")
    folder = Path(out) if out else Path("whence-benchmark", title)
    settings = {
        "protocol": protocol,
        **judged.options(),
        "model weights": hash_weights(loaded.model),
        "dataset": dataset.name,
        "dataset fingerprint": dataset.fingerprint(),
        "limit": limit,
        "seed": seed,
        "rules": rules,
        "precision": loaded.precision,
    }
    store = Store(folder, settings)
    work = _Run(judged, loaded, dataset, chosen, names, store, batch, seed)
    try:
        work.compute()
    except BaseException:
        work.stopped()
        raise
    return work.finish()


def _seeded(methods: list[Chosen], seed: int) -> list[Chosen]:
    """Methods that draw random numbers draw them by the run's seed, unless they were given one."""
    return [
        Chosen(one.label, one.name, {"seed": seed, **one.options}, one.rules)
        if "seed" in one.about.options
        else one
        for one in methods
    ]


def _check(
    protocol: Protocol,
    loaded: LoadedModel,
    dataset: Dataset,
    names: Sequence[str],
    methods: Sequence[Chosen],
) -> None:
    """Refuse what cannot work, before any work."""
    for method in methods:
        if dataset.kind not in method.about.inputs:
            told = " and ".join(method.about.inputs)
            raise WhenceError(f"Method '{method.name}' explains {told}s only, not {dataset.kind}s.")
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
            if len(unfit) < _LOOKED_AT:
                continue
            break
        return
    raise unfit[0] if unfit else unreadable or WhenceError("The dataset holds no sample.")


class _Run:
    """One run over a dataset."""

    def __init__(
        self,
        protocol: Protocol,
        loaded: LoadedModel,
        dataset: Dataset,
        methods: list[Chosen],
        names: list[str],
        store: Store,
        batch: int,
        seed: int,
    ) -> None:
        self.protocol, self.loaded, self.dataset = protocol, loaded, dataset
        self.methods, self.names, self.store = methods, names, store
        self.batch, self.seed = batch, seed
        self.worked = {m.label for m in methods if store.worked(m.label)}
        protocol.begin(names, seed)
        self.versions = [*store.earlier.get("versions_before", ()), store.earlier.get("versions")]
        self.versions = [v for v in self.versions if v is not None and v != list_versions()]
        self._write_run("running", {})

    def _write_run(self, state: str, summary: Mapping[str, Any]) -> None:
        labels = [method.label for method in self.methods]
        earlier = self.store.earlier
        known = [*earlier.get("methods_before", ()), *earlier.get("methods", ())]
        last = {m.get("label"): m for m in known}
        before = [m for label, m in last.items() if label not in labels]
        more = {"methods_before": before, "state": state, **summary}
        self.store.write_run(self.facts() | more)

    def facts(self) -> dict[str, Any]:
        """What was asked for, and with what it was done."""
        return {
            "model": self.loaded.name,
            "data": self.dataset.name,
            "samples": len(self.names),
            "methods": [
                {"label": m.label, "name": m.name, "options": m.options, "rules": m.rules}
                for m in self.methods
            ],
            "batch": self.batch,
            "device": str(self.loaded.device),
            "fast": self.loaded.fast,
            "versions": list_versions(),
            "versions_before": self.versions,
        }

    def compute(self) -> None:
        """Compute what is missing, batch by batch, and keep it."""
        groups = [self.names[at : at + self.batch] for at in range(0, len(self.names), self.batch)]
        missing = [
            {m.label: [n for n in group if n not in self.store.done(m.label)] for m in self.methods}
            for group in groups
        ]
        work = [(g, m) for g, m in zip(groups, missing, strict=True) if any(m.values())]
        total = sum(len(names) for _, of_methods in work for names in of_methods.values())
        read = [[n for n in g if any(n in names for names in m.values())] for g, m in work]
        with bar(f"Benchmark: {self.protocol.name}", total) as advance:
            for (_, wanted), found in zip(work, batches(read, self._read), strict=True):
                by_name = {_name(one): one for one in found}
                for method in self.methods:
                    names = wanted[method.label]
                    if names:
                        rows = self._rows([by_name[name] for name in names], method)
                        self.store.add(method.label, rows)
                        advance(len(names))

    def _read(self, name: str) -> Any:
        sample = self.dataset.read(name)
        return self.protocol.ready(self.loaded, sample)

    def _rows(self, samples: Sequence[Any], method: Chosen) -> list[Row]:
        """Rows of a batch; what is broken or cannot be explained gets one that says so."""
        rows: dict[str, Row] = {
            one.name: {"sample": one.name, "error": one.error}
            for one in samples
            if isinstance(one, Broken)
        }
        usable = [one for one in samples if not isinstance(one, Broken)]
        if usable:
            rows |= {row["sample"]: row for row in self._explained(usable, method)}
        return [rows[_name(one)] for one in samples]

    def _explained(self, samples: Sequence[Any], method: Chosen) -> list[Row]:
        try:
            rows = self._tried(samples, method)
        except MemoryShortError:
            raise
        except WhenceError as error:
            if len(samples) == 1:
                if method.label not in self.worked:
                    # Nothing is known to work: the model or the request is wrong, not this sample.
                    raise
                return [{"sample": _name(samples[0]), "error": str(error)}]
            problems: list[WhenceError] = []
            rows = []
            for one in samples:
                try:
                    rows += self._tried([one], method)
                except WhenceError as problem:
                    problems.append(problem)
                    rows.append({"sample": _name(one), "error": str(problem)})
            if len(problems) == len(samples) and method.label not in self.worked:
                raise problems[0] from None
        self.worked.add(method.label)
        return rows

    def _tried(self, samples: Sequence[Any], method: Chosen) -> list[Row]:
        try:
            return self.protocol.rows(self.loaded, samples, method)
        except WhenceError:
            raise
        except torch.OutOfMemoryError:
            raise MemoryShortError(
                "The device's memory is too small; give a smaller --batch."
            ) from None
        except Exception as error:  # a model may raise anything
            said = str(error).split("\n")[0].rstrip(".")
            raise WhenceError(
                f"Method '{method.label}' failed: {type(error).__name__}: {said}."
            ) from error

    def stopped(self) -> None:
        """Say so if there is no result yet, so that the folder is free for other settings."""
        if not self.store.has_parts():
            with suppress(WhenceError):
                self._write_run("stopped", {})

    def finish(self) -> Outcome:
        """Make the table and write everything."""
        results = {m.label: self.store.results(m.label, self.names) for m in self.methods}
        skipped = _skipped(results)
        kept = np.array([name not in skipped for name in self.names])
        if not kept.any():
            name, error = next(iter(skipped.items()))
            raise WhenceError(f"No sample can be used; of '{name}': {error}")
        results = {label: {k: v[kept] for k, v in of.items()} for label, of in results.items()}
        count = int(kept.sum())
        title = (
            f"{self.protocol.title}: {self.dataset.name}, {Path(self.loaded.name).name}, "
            f"{count} sample{'s' if count != 1 else ''}"
        )
        table = tabulate(self.protocol, title, results, self.seed, self._footer(skipped))
        self._write(table, results, skipped)
        return Outcome(table, self.store.folder, results, skipped, self.store.set_aside)

    def _footer(self, skipped: Mapping[str, str]) -> list[str]:
        notes = []
        if skipped:
            named = ", ".join(map(to_printable, list(skipped)[:_TOLD]))
            named += ", …" if len(skipped) > _TOLD else ""
            notes.append(f"{len(skipped)} sample(s) were skipped: {named}; run.json says why.")
        if self.versions:
            told = "; ".join(", ".join(f"{k} {v}" for k, v in one.items()) for one in self.versions)
            notes.append(f"Some results may come from other versions: {told}.")
        return notes

    def _write(
        self, table: Table, results: Mapping[str, Columns], skipped: Mapping[str, str]
    ) -> None:
        store = self.store
        store.write("table.md", formats.markdown(table))
        store.write("table.csv", formats.comma_separated(table))
        store.write("table.tex", formats.latex(table))
        figure = curves.drawn(self.protocol.curves(results), results, table.title)
        picture = store.folder / "curves.png"
        if figure is not None:
            figure.save(picture)
        facts = {"settings": store.settings, **self.facts()}
        page = report.page(
            self.protocol,
            table,
            results,
            picture.read_bytes() if figure is not None else None,
            self.loaded.plain(),  # for a few examples
            self.dataset,
            self.methods,
            facts,
        )
        store.write("report.html", page)
        told = [{"sample": name, "error": error} for name, error in skipped.items()]
        summary = {
            "used": len(self.names) - len(skipped),
            "skipped": told,
            "set_aside": store.set_aside,
            "notes": table.notes,
        }
        self._write_run("finished", {"summary": summary, "results": table.as_dict()})


def _name(one: Any) -> str:
    name = getattr(one, "name", None)
    return str(one.sample.name if name is None else name)


def _skipped(results: Mapping[str, Columns]) -> dict[str, str]:
    """Samples that some method has no row of, and why."""
    found: dict[str, str] = {}
    for columns in results.values():
        for name, error in zip(columns["sample"], columns.get("error", ()), strict=False):
            if isinstance(error, str):
                found.setdefault(str(name), error)
    return found
