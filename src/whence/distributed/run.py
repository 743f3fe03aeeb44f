"""Run over many inputs: what happens before, around and after the explaining, in any engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from whence._util.progress import bar
from whence.distributed.contents import Item
from whence.distributed.file_source import FileSource
from whence.distributed.folder import INPUTS, ResultFolder
from whence.distributed.ids import IdSet
from whence.distributed.listing import name_files
from whence.distributed.row_explainer import RowExplainer
from whence.distributed.rows import Row, make_table
from whence.distributed.settings import RunDescription, RunSettings, describe_run
from whence.distributed.sources import InputSource, open_source
from whence.distributed.summary import RunSummary, check_end
from whence.errors import WhenceError
from whence.models import LoadedModel

# Inputs whose ids are looked up at once; those of tables hold their photos.
_LOOKED_UP = 64
# A part is written at least so often, so that little is lost when a run is killed.
_MAX_SECONDS = 300.0
_TOLD_SECONDS = 60.0
_FIRST_INPUTS = 1000
_NAMED_IDS = 5


@dataclass(frozen=True)
class RunJob:
    """What an engine gets: it writes a row for each input that is not done.

    Attributes:
        folder: Where parts go.
        settings: Of the run.
        source: The inputs.
        description: What rows share.
        done: The ids that have a row.
        advance: Called with each number of rows that were written.
        loaded: The model, where this process has loaded it.
        missing: The number of inputs that have no row; None if it is not known.
    """

    folder: ResultFolder
    settings: RunSettings
    source: InputSource
    description: RunDescription
    done: IdSet
    advance: Callable[[int], None]
    loaded: LoadedModel | None = None
    missing: int | None = None

    def iterate_missing(self) -> Iterator[Item]:
        """Go through the inputs that have no row yet."""
        items = self.source.iterate_items()
        while chunk := list(islice(items, _LOOKED_UP)):
            known = self.done.find_known([item.id for item in chunk])
            yield from (item for item, is_done in zip(chunk, known, strict=True) if not is_done)


@dataclass(frozen=True)
class PreparedRun:
    """A run that is proven to work, before anything is written.

    Attributes:
        settings: With the kind of its inputs.
        description: What its rows will share.
        source: The inputs.
        loaded: The model; None where another process has loaded it.
    """

    settings: RunSettings
    description: RunDescription
    source: InputSource
    loaded: LoadedModel | None = None


Engine = Callable[[RunJob], None]
"""Writes the missing rows."""
Preparer = Callable[[RunSettings, Sequence[str]], PreparedRun]
"""Proves that settings work on the inputs that arguments name."""


def prepare_run(settings: RunSettings, arguments: Sequence[str]) -> PreparedRun:
    """Load the model, open the inputs, and explain one of them.

    Raises:
        WhenceError: The model, the method, the targets or the inputs are wrong.
    """
    is_named = settings.explain.model is not None or settings.explain.weights is not None
    loaded = settings.load_model() if is_named else None
    kind = None if loaded is None else loaded.kind
    source = open_source(arguments, kind, settings.column, settings.id)
    settings = replace(settings, kind=source.kind)
    loaded = loaded or settings.load_model()
    description = describe_run(settings, loaded, islice(source.iterate_items(), _FIRST_INPUTS))
    return PreparedRun(settings, description, source, loaded)


def explain_locally(job: RunJob) -> None:
    """Explain the missing inputs in this process, and write a part whenever it is full."""
    explainer = RowExplainer(job.settings, job.description, job.loaded)
    rows: list[Row] = []
    written = time.monotonic()

    def write() -> None:
        nonlocal written
        if rows:
            table = make_table(rows, job.description.form)
            rows.clear()  # first: an interrupted write is not begun again
            job.folder.write_part(table)
        written = time.monotonic()

    try:
        for row in explainer.explain_rows(job.iterate_missing()):
            rows.append(row)
            if len(rows) >= job.settings.part_rows or time.monotonic() - written > _MAX_SECONDS:
                write()
            job.advance(1)
        write()
    except KeyboardInterrupt:
        write()  # what was explained is kept
        raise
    except WhenceError as error:
        raise WhenceError(f"{error} Finished rows are kept; the same command goes on.") from error


def run_many(
    arguments: Sequence[str],
    settings: RunSettings,
    out: str | Path,
    *,
    force: bool = False,
    retry: bool = False,
    engine: Engine = explain_locally,
    prepare: Preparer = prepare_run,
    tell: Callable[[str], None] = lambda _: None,
) -> RunSummary:
    """Explain many inputs, and write a row for each to a folder; the same call again goes on.

    Args:
        arguments: Files, folders, globs, tables or addresses.
        settings: How to explain, and how rows are written.
        out: The folder for results: a path or an address.
        force: Whether to delete an earlier run in the folder.
        retry: Whether to explain inputs again that failed in an earlier run.
        engine: Who explains: this process if left out.
        prepare: Who proves that the settings work: this process if left out.
        tell: Is told in a sentence what goes on.

    Returns:
        The summary, which run.json holds too.

    Raises:
        WhenceError: The run is refused, or cannot go on; parts that were written are kept.
    """
    settings.check()
    for argument in arguments:
        name_files(argument)  # a wrong name is refused before a model is loaded
    folder = ResultFolder(out)
    folder.check_free()
    prepared = prepare(settings, arguments)
    source = prepared.source
    ids = source.read_ids()
    if ids is not None:
        _check_distinct(source, ids)
    with folder.lock():
        if force:
            folder.delete()
        facts = {"settings": prepared.settings.to_json(), "source": source.facts}
        folder.start(prepared.description, facts)
        if isinstance(source, FileSource):
            source.write_list(folder.place, INPUTS)
        if retry:
            dropped = folder.drop_failed()
            failed = "input that failed is" if dropped == 1 else "inputs that failed are"
            tell(f"{dropped:,} {failed} explained again.")
        done = folder.read_done()
        missing = None if ids is None else len(ids.subtract(done))
        for note in source.notes:
            tell(f"{note}.")
        if ids is not None and missing is not None and missing < len(ids):
            tell(f"{len(ids) - missing:,} of {len(ids):,} were done.")
        start = time.monotonic()
        with bar("Explaining", missing or 0) as draw:
            advance = _tell_now_and_then(draw, missing, tell)
            job = RunJob(folder, prepared.settings, source, prepared.description, done, advance)
            if missing != 0:
                engine(replace(job, loaded=prepared.loaded, missing=missing))
        return check_end(folder, source, ids, time.monotonic() - start, len(done))


def _tell_now_and_then(
    draw: Callable[[int], None], total: int | None, tell: Callable[[str], None]
) -> Callable[[int], None]:
    """Where no bar is drawn, tell every minute how far the work has come."""
    done, told = 0, time.monotonic()

    def advance(steps: int) -> None:
        nonlocal done, told
        draw(steps)
        done += steps
        if time.monotonic() - told > _TOLD_SECONDS and not sys.stderr.isatty():
            told = time.monotonic()
            tell(f"{done:,} explained." if total is None else f"{done:,} of {total:,} explained.")

    return advance


def _check_distinct(source: InputSource, ids: IdSet) -> None:
    if ids.count_distinct() == len(ids):
        return
    repeated = ids.list_repeated()
    found: list[str] = []
    for item in source.iterate_items():
        if repeated.find_known([item.id])[0] and item.id not in found:
            found.append(item.id)
            if len(found) == min(_NAMED_IDS, len(repeated)):
                break
    raise WhenceError(
        f"Several rows have the same id, such as {', '.join(map(repr, found))}. Say with --id "
        f"which column tells rows apart."
    )
