"""The end of a run: whether each input has exactly one row, and what the rows say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from whence.distributed.folder import ResultFolder
from whence.distributed.ids import IdSet
from whence.distributed.rows import import_arrow
from whence.distributed.sources import InputSource

_NUMBER = re.compile(r"\d+")
# How many kinds of errors, and ids of each, are named.
_KINDS, _IDS = 20, 5
# A language model's classes are all tokens.
_CLASSES = 1000


@dataclass
class ErrorKind:
    """Errors that differ in nothing but numbers."""

    sentence: str  # the first of them
    count: int = 0
    ids: list[str] = field(default_factory=list)  # of the first inputs


@dataclass(frozen=True)
class RunSummary:
    """What became of the inputs of a run.

    Attributes:
        inputs: Their number.
        explained: How many have a row with scores.
        failed: How many have a row with an error.
        errors: The errors by kind, the most frequent first.
        classes: The names of the explained classes with how many inputs have them, the most
            frequent first; of several targets, the first counts.
        doubts: Names of checks that are in doubt, with the number of rows.
        missing: Ids of inputs without a row, at most a few; `missing_count` is their number.
        repeated: Ids with several rows, at most a few; `repeated_count` is their number.
        gone: The number of rows whose input is not there any more.
        parts: The number of Parquet files.
        seconds: The time that explaining took, in all calls of the command together.
        rows_per_second: Of this call; None if nothing was left to do.
    """

    inputs: int
    explained: int
    failed: int
    errors: list[ErrorKind]
    classes: dict[str, int]
    doubts: dict[str, int]
    missing: list[str]
    missing_count: int
    repeated: list[str]
    repeated_count: int
    gone: int
    parts: int
    seconds: float
    rows_per_second: float | None

    @property
    def is_complete(self) -> bool:
        """Whether each input has exactly one row."""
        return not self.missing_count and not self.repeated_count

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON holds it."""
        return asdict(self)


class _Counts:
    """What is counted over all rows."""

    def __init__(self) -> None:
        self.ids = IdSet()
        self.failed = 0
        self.errors: dict[str, ErrorKind] = {}
        self.classes: Counter[str] = Counter()
        self.doubts: Counter[str] = Counter()

    def add(self, batch: Any) -> None:
        """Count the rows of a `pyarrow.RecordBatch`."""
        compute = import_arrow("pyarrow.compute")
        ids = batch.column("id").to_pylist()
        self.ids.add(ids)
        for name, error in zip(ids, batch.column("error").to_pylist(), strict=True):
            if error:
                self._add_error(name, error)
        names = batch.column("name").to_pylist()
        firsts = (name[0] if isinstance(name, list) else name for name in names)
        self.classes.update(name for name in firsts if name is not None)
        checks = compute.list_flatten(batch.column("checks"))
        status = compute.struct_field(checks, "status")
        doubtful = checks.filter(compute.equal(status, "doubt"))
        self.doubts.update(compute.struct_field(doubtful, "name").to_pylist())

    def _add_error(self, name: str, error: str) -> None:
        self.failed += 1
        key = _NUMBER.sub("0", error)
        if key not in self.errors and len(self.errors) >= _KINDS:
            key = "other"
        kind = self.errors.setdefault(key, ErrorKind("Other errors." if key == "other" else error))
        kind.count += 1
        if len(kind.ids) < _IDS:
            kind.ids.append(name)


def check_end(
    folder: ResultFolder, source: InputSource, ids: IdSet | None, seconds: float, before: int
) -> RunSummary:
    """Compare the rows of a folder with the inputs, and write the summary to run.json.

    Args:
        folder: Of the results.
        source: The inputs.
        ids: Of the inputs; read again if None.
        seconds: How long explaining took in this call.
        before: The number of rows that were there before.

    Raises:
        WhenceError: A part is damaged.
    """
    counts = _Counts()
    for batch in folder.read_batches(["id", "name", "error", "checks"], 8192):
        counts.add(batch)
    if ids is None:
        ids = IdSet(item.id for item in source.iterate_items())
    missing, repeated = ids.subtract(counts.ids), counts.ids.list_repeated()
    gone = counts.ids.subtract(ids)
    rows = len(counts.ids)
    earlier = float((folder.run.get("summary") or {}).get("seconds", 0.0))
    new = rows - before
    summary = RunSummary(
        inputs=len(ids),
        explained=rows - counts.failed,
        failed=counts.failed,
        errors=sorted(counts.errors.values(), key=lambda kind: -kind.count),
        classes=dict(counts.classes.most_common(_CLASSES)),
        doubts=dict(counts.doubts.most_common()),
        missing=_name_ids((item.id for item in source.iterate_items()), missing),
        missing_count=len(missing),
        repeated=_name_ids((row["id"] for row in folder.read_rows(["id"])), repeated),
        repeated_count=len(repeated),
        gone=len(gone),
        parts=len(folder.list_parts()),
        seconds=round(earlier + seconds, 3),
        rows_per_second=round(new / seconds, 3) if new > 0 and seconds > 0 else None,
    )
    state = "finished" if summary.is_complete else "incomplete"
    folder.write_run({"state": state, "summary": summary.to_json()})
    return summary


def _name_ids(ids: Iterator[str], wanted: IdSet) -> list[str]:
    """Name the first few of the wanted ids."""
    found: list[str] = []
    while len(found) < min(_IDS, len(wanted)):
        name = next(ids, None)
        if name is None:
            break
        if wanted.find_known([name])[0] and name not in found:
            found.append(name)
    return found
