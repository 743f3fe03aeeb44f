"""The folder of a run's results: Parquet parts, what was done, and how it was made.

``DIR/*.parquet`` are the parts. ``DIR/_whence`` holds run.json, and in ``checkpoint`` the ids of
each part, in Ray Data's own format: ``BASE.pending.parquet`` while the part is being written, and
``BASE.parquet`` when it is whole. So a run ends anywhere and goes on, here or on a cluster.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from whence._util.fingerprint import list_versions
from whence.distributed.addresses import Place, explain_write
from whence.distributed.ids import IdSet
from whence.distributed.rows import import_arrow, read_row
from whence.distributed.settings import RunDescription, RunSettings
from whence.errors import WhenceError
from whence.explanation import Explanation, Photo

FORMAT = "whence run 1"
META = "_whence"
CHECKPOINT = f"{META}/checkpoint"
INPUTS = f"{META}/inputs.parquet"
_RUN = f"{META}/run.json"
_LOCK = f"{META}/lock"
_PART = ".parquet"
_PENDING = ".pending.parquet"
# The names of parts that whence writes, and those that Ray writes.
_NAME = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}-\d{6}\.parquet|\w+_[0-9a-f]{32}_\d{6,}-\d+\.parquet")


class ResultFolder:
    """The results of a run over many inputs, to read them, or to write them part by part.

    Args:
        address: The folder: a path, or an address such as ``s3://bucket/results``.

    Attributes:
        run: The content of run.json; empty if the folder holds no run.

    Raises:
        WhenceError: It cannot be read, or is a file.
    """

    def __init__(self, address: str | Path) -> None:
        self.place = Place(address)
        self.address = self.place.address
        if self.place.exists() and not self.place.is_folder():
            raise WhenceError(f"'{self.address}' is a file, not a folder of results.")
        self.run: dict[str, Any] = self._read_run()
        self._stem = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:8]}"
        self._written = 0

    @property
    def description(self) -> RunDescription:
        """What all rows share: fingerprint, kind of inputs, types of columns, method, model.

        Raises:
            WhenceError: The folder holds no run.
        """
        if not self.run:
            raise WhenceError(f"'{self.address}' holds no results of a run over many inputs.")
        return RunDescription.from_json(self.run["description"])

    @property
    def settings(self) -> RunSettings:
        """The settings of the run, with which its model can be loaded again.

        Raises:
            WhenceError: The folder holds no run, or one that was started otherwise.
        """
        _ = self.description
        try:
            return RunSettings.from_json(self.run["settings"])
        except (LookupError, TypeError, ValueError) as error:
            raise WhenceError(f"'{self.address}/{_RUN}' does not tell its settings.") from error

    # Reading

    def list_parts(self) -> list[str]:
        """List the names of the parts that are whole."""
        whole = self._list_bases(_PART) - self._list_bases(_PENDING)
        return [n for n in self.place.list_names() if _is_part(n) and _has_base(n, whole)]

    def count_rows(self, parts: Sequence[str] | None = None) -> int:
        """Count the rows of these parts, or of all."""
        return sum(self._open_part(part).metadata.num_rows for part in parts or self.list_parts())

    def read_batches(
        self,
        columns: Sequence[str] | None = None,
        batch_rows: int = 1024,
        parts: Sequence[str] | None = None,
    ) -> Iterator[Any]:
        """Read the rows of all parts as `pyarrow.RecordBatch`, some at a time.

        Args:
            columns: Their names; all if left out.
            batch_rows: How many rows come at once, at most.
            parts: Of `list_parts`, those to read; all if left out.

        Raises:
            WhenceError: A part is damaged.
        """
        for part in self.list_parts() if parts is None else parts:
            file = self._open_part(part)
            try:
                yield from file.iter_batches(batch_rows, columns=columns)
            except (OSError, ValueError) as error:
                raise self._explain_damage(part) from error
            finally:
                file.close(force=True)

    def read_rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Read the rows of all parts one by one, as dictionaries of Python objects."""
        for batch in self.read_batches(columns):
            yield from batch.to_pylist()

    def read_explanation(self, row: Mapping[str, Any], photo: Photo | None = None) -> Explanation:
        """Make the explanation of a row again, without logits and details.

        Args:
            row: All columns of it, from `read_rows`.
            photo: The photo, where it was read again, so that figures can show it.

        Raises:
            WhenceError: The row tells of an error.
        """
        return read_row(row, self._facts, photo)

    @cached_property
    def _facts(self) -> dict[str, Any]:
        return self.description.facts

    def read_done(self) -> IdSet:
        """Read the ids of the inputs that have a row."""
        parquet = import_arrow("pyarrow.parquet")
        pa = import_arrow()
        done = IdSet()
        for base in self._list_bases(_PART):
            name = f"{CHECKPOINT}/{base}{_PART}"
            try:
                with self.place.files.open_input_file(self.place.join(name)) as file:
                    column = parquet.read_table(file).column(0)
            except (OSError, ValueError) as error:
                raise self._explain_damage(name) from error
            done.add(column.cast(pa.string()).to_pylist())
        return done

    # Writing

    def start(self, description: RunDescription, facts: Mapping[str, Any]) -> None:
        """Begin a run, or go on with it, and clean up what a run that was killed left behind.

        Args:
            description: Of the run; that of the folder must have the same fingerprint.
            facts: What else run.json tells: the source, settings.

        Raises:
            WhenceError: The folder holds another run or other files, or cannot be written to.
        """
        self.check_free()
        if self.run:
            self._check_fingerprint(description)
            self.clean()
        with explain_write(self.address):
            self.place.files.create_dir(self.place.join(CHECKPOINT), recursive=True)
        kept = {} if not self.run else {"started": self.run.get("started")}
        begun = {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **kept}
        self.write_run(
            {
                "state": "running",
                "description": description.to_json(),
                "versions": list_versions(),
                **begun,
                **facts,
            }
        )

    def check_free(self) -> None:
        """Refuse a folder that holds no run, but other files.

        Raises:
            WhenceError: It does.
        """
        others = [name for name in self.place.list_names() if name != META]
        if others and not self.run:
            raise WhenceError(
                f"The folder '{self.address}' holds files that are not of a run, such as "
                f"'{others[0]}'; name another with --out."
            )

    def write_run(self, facts: Mapping[str, Any]) -> None:
        """Add facts to run.json, in place of earlier ones of the same name."""
        self.run = {"format": FORMAT, **self.run, **json.loads(json.dumps(facts, default=str))}
        content = json.dumps(self.run, ensure_ascii=False, indent=2) + "\n"
        self.place.write(_RUN, content.encode("utf-8", "backslashreplace"))

    def write_part(self, table: Any) -> str:
        """Write rows as a part that counts as a whole or not at all.

        Args:
            table: A `pyarrow.Table`, with the columns of `rows.make_schema`.

        Returns:
            The name of the part.

        Raises:
            WhenceError: It cannot be written; earlier parts are kept.
        """
        parquet = import_arrow("pyarrow.parquet")
        base = f"{self._stem}-{self._written:06}"
        self._written += 1
        pending = f"{CHECKPOINT}/{base}{_PENDING}"
        with explain_write(self.address):
            for name, rows in ((pending, table.select(["id"])), (f"{base}{_PART}", table)):
                with self.place.files.open_output_stream(self.place.join(name)) as file:
                    parquet.write_table(rows, file)
            self.place.move(pending, f"{CHECKPOINT}/{base}{_PART}")
        return f"{base}{_PART}"

    def clean(self) -> list[str]:
        """Delete what a run that was killed left half done: its inputs are explained again.

        Those are parts without a checkpoint, or with one that is pending; and checkpoints without
        a part. Files with names that neither whence nor Ray gives are left alone.

        Returns:
            The names of what was deleted.
        """
        parts = [name for name in self.place.list_names() if _is_part(name)]
        pending, committed = self._list_bases(_PENDING), self._list_bases(_PART)
        whole = {base for part in parts if (base := _find_base(part, committed - pending))}
        lost = [part for part in parts if not _has_base(part, whole) and _NAME.fullmatch(part)]
        # Parts go before their checkpoints: when this is killed, the next run finds both again.
        lost += [f"{CHECKPOINT}/{base}{_PART}" for base in sorted(committed - whole)]
        lost += [f"{CHECKPOINT}/{base}{_PENDING}" for base in sorted(pending)]
        with explain_write(self.address):
            for name in lost:
                self.place.delete(name)
        return lost

    def delete(self) -> None:
        """Delete what whence wrote in the folder, and nothing else."""
        bases = self._list_bases(_PENDING) | self._list_bases(_PART)
        with explain_write(self.address):
            for name in self.place.list_names():
                if _is_part(name) and _find_base(name, bases):
                    self.place.delete(name)
            for name in self.place.list_names(META):
                if self.place.is_folder(f"{META}/{name}"):
                    self.place.files.delete_dir(self.place.join(f"{META}/{name}"))
                elif f"{META}/{name}" != _LOCK:  # which this run may hold
                    self.place.delete(f"{META}/{name}")
        self.run = {}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other runs on this machine from writing to the folder.

        Raises:
            WhenceError: Another run is writing to it.
        """
        with ExitStack() as stack:
            if self.place.is_local and os.name == "posix":
                stack.enter_context(self._hold_lock())
            yield

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        import fcntl

        path = Path(self.place.join(_LOCK))
        with explain_write(self.address):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("wb")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise WhenceError(
                    f"Another run is writing to '{self.address}'; wait for it, or name another "
                    f"folder with --out."
                ) from None
            yield

    # Helpers

    def _read_run(self) -> dict[str, Any]:
        if not self.place.exists(_RUN):
            return {}
        try:
            content = json.loads(self.place.read(_RUN))
            if content["format"] == FORMAT and RunDescription.from_json(content["description"]):
                return dict(content)
        except (OSError, ValueError, LookupError, TypeError):
            pass
        raise WhenceError(
            f"'{self.address}/{_RUN}' is damaged, or written by another version of whence; name "
            f"another folder with --out."
        )

    def _check_fingerprint(self, description: RunDescription) -> None:
        before = self.description
        if before.fingerprint == description.fingerprint:
            return
        was, now = before.depends_on, description.depends_on
        differ = [n for n in dict.fromkeys([*was, *now]) if was.get(n) != now.get(n)]
        told = [_tell_difference(name, was.get(name), now.get(name)) for name in differ]
        raise WhenceError(
            f"'{self.address}' holds results that were made otherwise: {'; '.join(told)}. Name "
            f"another folder with --out, or give --force to start anew."
        )

    def _list_bases(self, ending: str) -> set[str]:
        """List the parts whose checkpoints end so."""
        names = [name for name in self.place.list_names(CHECKPOINT) if name.endswith(ending)]
        if ending == _PART:
            names = [name for name in names if not name.endswith(_PENDING)]
        return {name.removesuffix(ending) for name in names}

    def _open_part(self, name: str) -> Any:
        parquet = import_arrow("pyarrow.parquet")
        try:
            return parquet.ParquetFile(self.place.files.open_input_file(self.place.join(name)))
        except (OSError, ValueError) as error:
            raise self._explain_damage(name) from error

    def _explain_damage(self, name: str) -> WhenceError:
        return WhenceError(
            f"'{self.address}/{name}' is damaged or may not be read. Delete it and give the "
            f"command again: its inputs are explained anew."
        )


def _is_part(name: str) -> bool:
    return name.endswith(_PART) and not name.startswith(("_", "."))


def _find_base(part: str, bases: set[str]) -> str | None:
    """Find the checkpoint of a part: its name, to which Ray adds a number."""
    stem = part.removesuffix(_PART)
    return next((one for one in (stem, stem.rpartition("-")[0]) if one in bases), None)


def _has_base(part: str, bases: set[str]) -> bool:
    return _find_base(part, bases) is not None


def _tell_difference(name: str, was: object, now: object) -> str:
    if isinstance(was, str) and isinstance(now, str) and len(was) == len(now) == 64:
        return f"{name} differ"  # hashes tell a reader nothing
    return f"{name} was {json.dumps(was)} and is {json.dumps(now)} now"
