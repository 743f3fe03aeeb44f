"""Read finished benchmark runs from their folders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from whence._util.extras import import_extra
from whence._util.files import is_file
from whence.benchmark.columns import Columns, to_columns
from whence.benchmark.protocols import PROTOCOLS, AnyProtocol, build_protocol
from whence.benchmark.protocols.options import list_option_types
from whence.benchmark.store import ResultStore, quote_setting, read_run_file
from whence.benchmark.table import BenchmarkTable, TableCell, sort_samples, tabulate
from whence.errors import WhenceError

# Folders of runs lie in the folder that is named, or so deep in it.
_DEPTH = 3


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: one protocol, model and dataset, with its figures and rows.

    `results` are the columns of each method, of the samples that all could be judged on, sorted by
    name. What figures depend on is in `settings`.
    """

    protocol: AnyProtocol
    model: str
    dataset: str
    table: BenchmarkTable
    results: Mapping[str, Columns]
    settings: Mapping[str, Any]
    folder: Path

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells runs apart in an overview: model, dataset, and protocol with its options."""
        return (self.model, self.dataset, self.protocol.label)

    @property
    def seed(self) -> int:
        """The seed of intervals and tests."""
        return int(self.settings["seed"])


def find_run_folders(folders: Sequence[Path]) -> list[Path]:
    """Find the folders of runs in folders, themselves among them, in order."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise WhenceError(f"'{folder}' is not a folder of benchmark runs.")
        for depth in range(_DEPTH):
            found += sorted(path.parent for path in folder.glob("*/" * depth + "run.json"))
    return [folder for folder in dict.fromkeys(found) if _is_benchmark(folder / "run.json")]


def _is_benchmark(path: Path) -> bool:
    """Whether a run.json is that of a benchmark; other commands have such files too."""
    try:
        read_run_file(path)
    except WhenceError:
        return False
    return True


def read_runs(folders: Sequence[Path]) -> tuple[list[FinishedRun], list[Path]]:
    """Read all finished runs in folders, and list the folders of those that are not.

    Runs of equal settings whose methods were computed in different folders become one.

    Raises:
        WhenceError: There is none, or two runs that differ would have one name.
    """
    runs: dict[tuple[str, str, str], FinishedRun] = {}
    unfinished: list[Path] = []
    for folder in find_run_folders(folders):
        run = _read_run(folder)
        if run is None:
            unfinished.append(folder)
        elif run.key in runs:
            runs[run.key] = _merge_runs(runs[run.key], run)
        else:
            runs[run.key] = run
    if not runs:
        named = ", ".join(f"'{folder}'" for folder in folders)
        raise WhenceError(f"There is no finished benchmark run in {named}.")
    return sort_runs(runs.values()), unfinished


def sort_runs(runs: Iterable[FinishedRun]) -> list[FinishedRun]:
    """Sort runs by model, dataset and protocol, so that their order on disk does not matter."""
    order = list(PROTOCOLS)
    return sorted(
        runs,
        key=lambda run: (run.model, run.dataset, order.index(run.protocol.name), run.key[2]),
    )


def _read_run(folder: Path) -> FinishedRun | None:
    """Read a run; None if it has not finished."""
    content = read_run_file(folder / "run.json")
    if content.get("state") != "finished":
        return None
    settings = content["settings"]
    protocol = _rebuild_protocol(settings)
    methods = [str(method["label"]) for method in content["methods"]]
    skipped = {one["sample"] for one in content["summary"]["skipped"]}
    results = {
        method: _select(columns, skipped)
        for method, columns in _read_columns(folder, settings, methods).items()
    }
    used = int(content["summary"]["used"])
    for method in methods:
        if method not in results or len(results[method]["sample"]) != used:
            raise WhenceError(
                f"'{folder}' lacks rows of the method '{method}'; start the run again, which "
                f"computes them."
            )
    metrics = [
        metric
        for metric in protocol.list_metrics()
        if any(metric.name in content["results"][method] for method in methods)
    ]
    cells = {
        (method, metric.name): _read_cell(content["results"][method][metric.name])
        for method in methods
        for metric in metrics
        if metric.name in content["results"][method]
    }
    model = Path(str(content["model"])).name
    title = f"{protocol.name.capitalize()}: {content['data']}, {model}"
    table = BenchmarkTable(title, metrics, methods, cells)
    results = {method: results[method] for method in methods}
    return FinishedRun(protocol, model, str(content["data"]), table, results, settings, folder)


def _rebuild_protocol(settings: Mapping[str, Any]) -> AnyProtocol:
    name = str(settings["protocol"])
    known = list_option_types(PROTOCOLS[name]) if name in PROTOCOLS else {}
    names = [option for option in (*known, "classes") if option in settings]
    return build_protocol(name, {option: settings[option] for option in names})


def _read_cell(found: Mapping[str, Any]) -> TableCell:
    return TableCell(*(found[name] for name in ("value", "low", "high", "p", "samples")))


def _read_columns(
    folder: Path, settings: Mapping[str, Any], methods: Sequence[str]
) -> dict[str, Columns]:
    """Read the rows of methods as columns, from the parts of a run or from its rows.parquet."""
    if not (folder / "parts").is_dir() and is_file(folder / "rows.parquet"):
        parquet = import_extra("pyarrow.parquet", "pyarrow", "benchmark")
        by_method: dict[str, list[dict[str, object]]] = {method: [] for method in methods}
        for row in parquet.read_table(folder / "rows.parquet").to_pylist():
            if row["method"] in by_method:
                by_method[row.pop("method")].append(row)
        return {method: to_columns(rows) for method, rows in by_method.items() if rows}
    store = ResultStore(folder, settings)
    done = {method: sorted(store.list_done(method)) for method in methods}
    return {method: store.load_results(method, names) for method, names in done.items() if names}


def _select(columns: Columns, skipped: set[str]) -> Columns:
    """The rows of samples that were not skipped, sorted by name."""
    kept = np.array([str(name) not in skipped for name in columns["sample"]])
    return sort_samples({key: values[kept] for key, values in columns.items()})


def _merge_runs(one: FinishedRun, other: FinishedRun) -> FinishedRun:
    """Merge two runs of equal settings: the methods of both, on the samples of both."""
    for name in dict.fromkeys([*one.settings, *other.settings]):
        was, now = one.settings.get(name), other.settings.get(name)
        if was != now:
            raise WhenceError(
                f"'{one.folder}' and '{other.folder}' are runs of one name, "
                f"'{' · '.join(one.key)}', but '{name}' is {quote_setting(was)} in the first and "
                f"{quote_setting(now)} in the second; leave one of them out."
            )
    names = set(_list_samples(one)) & set(_list_samples(other))
    if not names:
        raise WhenceError(f"'{one.folder}' and '{other.folder}' have no sample in common.")
    results = {
        method: _select(columns, set(map(str, columns["sample"])) - names)
        for method, columns in {**other.results, **one.results}.items()
    }
    results = {m: results[m] for m in dict.fromkeys([*one.results, *other.results])}
    table = tabulate(one.protocol, one.table.title, results, one.seed)
    return replace(one, table=table, results=results)


def _list_samples(run: FinishedRun) -> list[str]:
    return list(map(str, next(iter(run.results.values()))["sample"]))
