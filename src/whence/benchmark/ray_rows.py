"""Compute the rows that a benchmark run lacks on Ray: actors share the batches."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence._util.extras import import_extra
from whence._util.fingerprint import hash_weights
from whence._util.progress import bar
from whence._util.text import first_line
from whence.benchmark.job import BenchmarkJob
from whence.benchmark.missing import RowCollector, count_rows, list_missing_tasks
from whence.benchmark.protocols.base import AnyProtocol
from whence.benchmark.rows import BatchRows, BatchTask, RowComputer
from whence.benchmark.sources import RunSources
from whence.benchmark.stored import ResultDataset
from whence.distributed.ray_cluster import RayOptions, start_ray
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.version import __version__

if TYPE_CHECKING:
    import pyarrow

# Rows of a block come together, when its last batch is done; Ray slows down with very many blocks.
_MAX_BLOCKS = 1000


@dataclass(frozen=True)
class ComputerSettings:
    """What another process needs to compute rows.

    Attributes:
        protocol: With its options, and started.
        methods: Those of the run.
        sources: The model and the dataset.
        model_hash: Of the weights that the run began with.
        data_hash: The fingerprint of its dataset.
        folder: Where relative paths begin.
        names: Of the samples that will be read, where the dataset asks for them.
        version: Of whence, where the run was started.
    """

    protocol: AnyProtocol
    methods: list[MethodSpecification]
    sources: RunSources
    model_hash: str
    data_hash: str
    folder: Path
    names: tuple[str, ...] = ()
    version: str = __version__

    def build_computer(self) -> RowComputer:
        """Load model and dataset, and refuse others than those that the run began with."""
        where = f"on the machine '{platform.node()}'"
        if self.version != __version__:
            raise WhenceError(
                f"There is whence {__version__} {where}, and the run was started by "
                f"{self.version}; install the same on all machines."
            )
        with suppress(OSError):  # another machine may lack the folder, and need no relative paths
            os.chdir(self.folder)
        dataset = self.sources.load_dataset()
        dataset.announce(self.names)
        loaded = self.sources.load_model(dataset)
        if hash_weights(loaded.model) != self.model_hash:
            raise WhenceError(f"The model '{loaded.title}' has other weights {where}.")
        if dataset.compute_fingerprint() != self.data_hash:
            raise WhenceError(f"The dataset {dataset.name} holds other samples {where}.")
        return RowComputer(self.protocol, loaded, dataset, self.methods)


class RowActor:
    """Computes tasks in a process of Ray; model, dataset and protocol are loaded once.

    A table has a column ``task``; the result has a line for each batch and method. Errors are
    returned, not raised: Ray would try again.
    """

    def __init__(self, settings: ComputerSettings) -> None:
        self._problem = ""
        try:
            self._computer = settings.build_computer()
        except Exception as error:  # a model of the user's may raise anything
            self._problem = _tell(error)

    def __call__(self, table: pyarrow.Table) -> Iterator[pyarrow.Table]:
        """Compute the tasks of a block, one after the other."""
        if self._problem:
            yield _make_line({"fatal": self._problem})
            return
        tasks = [json.loads(task) for task in table["task"].to_pylist()]
        try:
            for batch in self._computer.compute_tasks(tasks):
                yield _make_line(
                    {
                        "method": batch.method,
                        "rows": batch.rows,
                        "problem": str(batch.problem or ""),
                    }
                )
        except Exception as error:
            yield _make_line({"fatal": _tell(error)})


def compute_rows_with_ray(
    job: BenchmarkJob, sources: RunSources, ray: RayOptions, title: str
) -> None:
    """Compute the rows that the store lacks on the actors of a Ray cluster, and add them to it."""
    known = job.store.settings
    hashes = (known["model weights"], known["dataset fingerprint"])
    names = tuple(job.names) if isinstance(job.dataset, ResultDataset) else ()
    given = (job.protocol, job.methods, sources, *hashes, Path.cwd(), names)
    settings = ComputerSettings(*given)
    tasks = list_missing_tasks(job)
    if not tasks:
        return
    collector = RowCollector(job)
    held: list[BatchRows] = []
    first = {m.label: next((t[m.label][:1] for t in tasks if t[m.label]), []) for m in job.methods}
    batches = _compute_batches(tasks, settings, ray)
    with closing(batches), bar(title, count_rows(tasks)) as advance:
        for batch in batches:
            is_first = [batch.rows[0]["sample"]] == first[batch.method]
            if batch.problem and not is_first and not collector.is_working(batch.method):
                # Batches come in any order; whether the method works, an earlier one may tell.
                held.append(batch)
                continue
            collector.add(batch)
            advance(len(batch.rows))
        for batch in held:
            collector.add(batch)
            advance(len(batch.rows))


def _compute_batches(
    tasks: Sequence[BatchTask], settings: ComputerSettings, options: RayOptions
) -> Generator[BatchRows]:
    """Yield the rows of batches as they come, in any order."""
    data = import_extra("ray.data", "ray", "ray")
    ray = import_extra("ray", "ray", "ray")
    with start_ray(options) as cluster:
        blocks = min(len(tasks), _MAX_BLOCKS)
        needed = replace(cluster, actors=min(cluster.actors, blocks))
        items = [{"task": json.dumps(task)} for task in tasks]
        dataset = data.from_items(items, override_num_blocks=blocks)
        dataset.context.enable_progress_bars = False  # there is one of our own
        computed = dataset.map_batches(
            RowActor,
            fn_constructor_args=(settings,),
            batch_size=None,
            batch_format="pyarrow",
            **needed.actor_options,
        )
        try:
            for line in computed.iter_rows():
                yield _parse_line(line["line"])
        except ray.exceptions.RayError as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            kept = "What was done so far is kept; run it again."
            raise WhenceError(f"Ray could not go on: {reason}. {kept}") from error


def _tell(error: Exception) -> str:
    if isinstance(error, WhenceError):
        return str(error)
    return f"A process of Ray failed: {type(error).__name__}: {first_line(error)}."


def _make_line(content: Mapping[str, Any]) -> pyarrow.Table:
    # As JSON in ASCII: names of files in errors need not be text, and rows have different columns.
    arrow = import_extra("pyarrow", "pyarrow", "ray")
    return arrow.table({"line": [json.dumps(content)]})


def _parse_line(line: str) -> BatchRows:
    content = json.loads(line)
    if "fatal" in content:
        raise WhenceError(content["fatal"])
    problem = WhenceError(content["problem"]) if content["problem"] else None
    return BatchRows(content["method"], content["rows"], problem)
