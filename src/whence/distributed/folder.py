"""The folder of a run's results: Parquet parts, what was done, and how it was made.

``DIR/*.parquet`` are the parts. ``DIR/_whence`` holds run.json, the ids of the parts, and of files
the list of inputs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from whence._util.fingerprint import list_versions
from whence.distributed.addresses import Location, explain_write
from whence.distributed.ids import IdSet
from whence.distributed.parts import CHECKPOINT, META, PartStore
from whence.distributed.rows import read_row
from whence.distributed.settings import RunDescription, RunSettings
from whence.errors import WhenceError
from whence.explanation import Explanation, Photo

FORMAT = "whence run 1"
INPUTS = f"{META}/inputs.parquet"
RUN = f"{META}/run.json"
_LOCK = f"{META}/lock"


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
        self.place = Location(address)
        self.address = self.place.address
        if self.place.exists() and not self.place.is_folder():
            raise WhenceError(f"'{self.address}' is a file, not a folder of results.")
        self.run: dict[str, Any] = self._read_run()
        self._parts = PartStore(self.place)

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
            raise WhenceError(f"'{self.address}/{RUN}' does not tell its settings.") from error

    # Reading

    def count_rows(self, parts: Sequence[str] | None = None) -> int:
        """Count the rows of these parts, or of all."""
        listed = self.list_parts() if parts is None else parts
        return sum(map(self._parts.count_rows, listed))

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
            yield from self._parts.read(part, columns, batch_rows)

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

    def list_parts(self) -> list[str]:
        """List the names of the parts that are whole."""
        return self._parts.list_whole()

    def read_done(self) -> IdSet:
        """Read the ids of the inputs that have a row."""
        return self._parts.read_done()

    # Writing

    def start(self, description: RunDescription, facts: Mapping[str, Any]) -> None:
        """Begin a run, or go on with it, and clean up what a run that was killed left behind.

        Args:
            description: Of the run; that of the folder must have the same fingerprint.
            facts: What else run.json tells: the source, settings.

        Raises:
            WhenceError: The folder holds another run, or cannot be written to.
        """
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
        self.place.write(RUN, content.encode("utf-8", "backslashreplace"))

    def write_part(self, table: Any) -> str:
        """Write rows as a part, and return its name; see `PartStore.write`."""
        return self._parts.write(table)

    def clean(self) -> list[str]:
        """Delete what a run that was killed left half done; see `PartStore.clean`."""
        return self._parts.clean()

    def drop_failed(self) -> int:
        """Drop the rows with an error, so that their inputs are explained again; count them."""
        return self._parts.drop_failed()

    def delete(self) -> None:
        """Delete what whence wrote in the folder, and nothing else."""
        self._parts.delete()
        with explain_write(self.address):
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
                self.run = self._read_run()  # another run may have ended a moment ago
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
            except BlockingIOError:
                raise WhenceError(
                    f"Another run is writing to '{self.address}'; wait for it, or name another "
                    f"folder with --out."
                ) from None
            except OSError:
                pass  # some network file systems have no locks
            yield

    # Helpers

    def _read_run(self) -> dict[str, Any]:
        if not self.place.exists(RUN):
            return {}
        try:
            content = json.loads(self.place.read(RUN))
            if content["format"] == FORMAT and RunDescription.from_json(content["description"]):
                return dict(content)
        except (OSError, ValueError, LookupError, TypeError):
            pass
        raise WhenceError(
            f"'{self.address}/{RUN}' is damaged, or written by another version of whence; name "
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


def _tell_difference(name: str, was: object, now: object) -> str:
    if isinstance(was, str) and isinstance(now, str) and len(was) == len(now) == 64:
        return f"{name} differ"  # hashes tell a reader nothing
    return f"{name} was {json.dumps(was)} and is {json.dumps(now)} now"
