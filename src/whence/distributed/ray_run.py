"""Explain the inputs of a run on a Ray cluster: read, explain in actors and write, by Ray Data."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from whence._util.text import first_line
from whence.distributed.contents import Item
from whence.distributed.folder import ResultFolder
from whence.distributed.ray_cluster import RayOptions, RayResources, start_ray
from whence.distributed.ray_readers import NO_CPU, make_checkpoints, make_reader, read_dataset
from whence.distributed.row_explainer import RowExplainer
from whence.distributed.run import PreparedRun, RunJob, run_many
from whence.distributed.settings import RunDescription, RunSettings, describe_run
from whence.distributed.sources import open_source
from whence.distributed.summary import RunSummary
from whence.errors import WhenceError
from whence.inputs.sources import Kind
from whence.version import __version__

# Each actor gets this many blocks at least, so that all end at about the same time.
_BLOCKS_PER_ACTOR = 4
# Inputs that are tried before settings are refused; they travel to the cluster.
_FIRST_INPUTS = 100
_POLL_SECONDS = {True: 0.5, False: 10.0}  # of a local folder, and of one at an address


def run_on_ray(
    arguments: Sequence[str],
    settings: RunSettings,
    out: str | Path,
    options: RayOptions,
    *,
    force: bool = False,
    retry: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> RunSummary:
    """Explain many inputs by the actors of a Ray cluster; otherwise as `run_many`.

    Raises:
        WhenceError: The run is refused, or broke off; parts that were written are kept.
    """
    if options.gpus_per_actor is None and settings.explain.device == "cpu":
        options = replace(options, gpus_per_actor=0.0)
    options.check()
    settings = RunSettings.from_json(settings.to_json())  # with absolute paths
    with ExitStack() as stack:

        def prepare(settings: RunSettings, arguments: Sequence[str]) -> PreparedRun:
            resources.append(stack.enter_context(start_ray(options)))
            return prepare_on_ray(settings, arguments, resources[0])

        def explain(job: RunJob) -> None:
            explain_on_ray(job, resources[0])

        resources: list[RayResources] = []
        begin = {"force": force, "retry": retry}
        return run_many(
            arguments, settings, out, **begin, engine=explain, prepare=prepare, tell=tell
        )


def prepare_on_ray(
    settings: RunSettings, arguments: Sequence[str], resources: RayResources
) -> PreparedRun:
    """Prove that settings work where the actors will be, with their device.

    Raises:
        WhenceError: The model, the method, the targets or the inputs are wrong.
    """
    import ray

    if settings.threads is None and not resources.gpus_per_actor:
        settings = replace(settings, threads=max(1, int(resources.cpus_per_actor)))
    is_named = settings.explain.model is not None or settings.explain.weights is not None
    share = {"num_cpus": resources.cpus_per_actor, "num_gpus": resources.gpus_per_actor}
    with _translate_errors():
        prover = ray.remote(**share)(_Prover).remote(__version__)
        kind = ray.get(prover.load.remote(settings)) if is_named else None
        source = open_source(arguments, kind, settings.column, settings.id)
        settings = replace(settings, kind=source.kind)
        if not is_named:
            ray.get(prover.load.remote(settings))
        first = list(islice(source.iterate_items(), _FIRST_INPUTS))
        description = ray.get(prover.describe.remote(settings, first))
        ray.kill(prover)  # its memory is free before the actors start
    return PreparedRun(settings, description, source)


def explain_on_ray(job: RunJob, resources: RayResources) -> None:
    """Explain the inputs that have no row, and write their rows.

    A killed worker or node costs only the blocks that it had. When the driver is killed, the
    finished parts are kept, by Ray Data's checkpoints.

    Raises:
        WhenceError: The run broke off; finished parts are kept.
    """
    from ray.data import TaskPoolStrategy

    rows = job.settings.part_rows
    if job.missing is not None:
        rows = min(rows, math.ceil(job.missing / (_BLOCKS_PER_ACTOR * resources.actors)))
    place, tasks = job.folder.place, resources.actors
    with _translate_errors(), _watch_parts(job.folder, job.advance):
        dataset = read_dataset(job.source, job.folder, tasks)
        dataset.context.checkpoint_config = make_checkpoints(job.source, job.folder)
        dataset.context.enable_progress_bars = False
        # Ray makes one task of these two, which asks for no CPU; alone, the second would.
        blocks = dataset.map_batches(
            _pass_on,
            batch_size=rows,
            batch_format="pyarrow",
            num_cpus=NO_CPU,
            compute=TaskPoolStrategy(size=tasks),
        ).repartition(target_num_rows_per_block=rows)
        explained = blocks.map_batches(
            BlockExplainer,
            fn_constructor_kwargs={
                "settings": job.settings,
                "description": job.description,
                "read": make_reader(job.source),
                "version": __version__,
            },
            batch_size=rows,
            batch_format="pyarrow",
            **resources.actor_options,
        )
        explained.write_parquet(
            place.root,
            filesystem=place.files,
            concurrency=tasks,
            ray_remote_args={"num_cpus": NO_CPU},
        )
    job.folder.clean()  # of what workers wrote that outlived an earlier driver


class BlockExplainer:
    """Explain the inputs of one block after the other: what an actor does.

    Args:
        settings: Of the run.
        description: Of the run, made where it was started.
        read: Makes the inputs of a block, a `pyarrow.Table`.
        version: Of whence, where the run was started.

    Raises:
        WhenceError: whence or the model are others here.
    """

    def __init__(
        self,
        settings: RunSettings,
        description: RunDescription,
        read: Callable[[Any], Sequence[Item]],
        version: str,
    ) -> None:
        _check_version(version)
        self._read = read
        self._explainer = RowExplainer(settings, description)

    def __call__(self, block: Any) -> Any:
        """Explain a block's inputs; return the table of their rows."""
        return self._explainer.explain(self._read(block))


class _Prover:
    """Loads the model in a worker, and tries settings on inputs."""

    def __init__(self, version: str) -> None:
        _check_version(version)

    def load(self, settings: RunSettings) -> Kind:
        """Load the model; return the kind of its inputs."""
        self._loaded = settings.load_model()
        return self._loaded.kind

    def describe(self, settings: RunSettings, inputs: Sequence[Item]) -> RunDescription:
        """Describe the run."""
        return describe_run(settings, self._loaded, inputs)


def _pass_on(block: Any) -> Any:
    return block


def _check_version(version: str) -> None:
    if version != __version__:
        raise WhenceError(
            f"A worker has whence {__version__}, and the run was started by {version}; install the "
            f"same on all machines."
        )


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn Ray's errors into sentences; those of whence come out as they are."""
    import ray.exceptions

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ray.exceptions.RayError as error:
        raise WhenceError(_find_sentence(error)) from None


def _find_sentence(error: BaseException) -> str:
    """Find whence's own sentence in an error of Ray, or make one of Ray's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        if "WhenceError: " in line:
            return line.partition("WhenceError: ")[2]
        if "ModuleNotFoundError: No module named 'whence" in line:
            return "A worker cannot import whence: install whence[ray] on all machines."
    cause = getattr(error, "cause", None) or error
    reason = f"{type(cause).__name__}: {first_line(cause)}"
    return (
        f"The run on Ray broke off: {reason}. Finished parts are kept: give the command again to "
        f"go on."
    )


@contextmanager
def _watch_parts(folder: ResultFolder, advance: Callable[[int], None]) -> Iterator[None]:
    """Tell of the rows in parts as they are finished, while the block lasts."""
    ended = threading.Event()
    known = set(folder.list_parts())

    def watch() -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(_POLL_SECONDS[folder.place.is_local])
            with suppress(WhenceError):  # a part may be written again just now; the end checks all
                new = set(folder.list_parts()) - known
                rows = folder.count_rows(sorted(new))
                known.update(new)
                if rows:
                    advance(rows)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
