"""Parts of results: Parquet files that count as a whole or not at all.

``_whence/checkpoint`` holds the ids of each part, in Ray Data's own format: in
``BASE.pending.parquet`` while the part is being written, and in ``BASE.parquet`` when it is whole.
So a run may end anywhere and goes on, here or on a cluster.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from whence._util.pickles import refuse_pickles
from whence.distributed.addresses import Location, explain_write
from whence.distributed.ids import IdSet
from whence.distributed.rows import import_arrow
from whence.errors import WhenceError

META = "_whence"
CHECKPOINT = f"{META}/checkpoint"
_PART = ".parquet"
_PENDING = ".pending.parquet"
# The names of parts that whence writes, and those that Ray writes.
_NAME = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}-\d{6}\.parquet|\w+_[0-9a-f]{32}_\d{6,}-\d+\.parquet")


class PartStore:
    """The parts in a folder of results, and what is known of them."""

    def __init__(self, place: Location) -> None:
        self._place = place
        self._stem = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:8]}"
        self._written = 0

    def list_whole(self) -> list[str]:
        """List the names of the parts that are whole."""
        whole = self._list_bases(_PART) - self._list_bases(_PENDING)
        return [n for n in self._place.list_names() if _is_part(n) and _has_base(n, whole)]

    def count_rows(self, part: str) -> int:
        """Count the rows of a part."""
        with self._open(part) as file:
            return int(file.metadata.num_rows)

    def read(self, part: str, columns: Sequence[str] | None, batch_rows: int) -> Iterator[Any]:
        """Read the rows of a part as `pyarrow.RecordBatch`, some at a time."""
        with self._open(part) as file:
            batches = file.iter_batches(batch_rows, columns=columns)
            while True:
                try:
                    batch = next(batches, None)
                except (OSError, ValueError) as error:
                    raise self._explain_damage(part) from error
                if batch is None:
                    return
                yield batch

    def read_done(self) -> IdSet:
        """Read the ids of the inputs that have a row."""
        parquet = import_arrow("pyarrow.parquet")
        pa = import_arrow()
        done = IdSet()
        for base in self._list_bases(_PART):
            name = f"{CHECKPOINT}/{base}{_PART}"
            try:
                with self._place.files.open_input_file(self._place.join(name)) as file:
                    column = parquet.read_table(file).column(0)
            except (OSError, ValueError) as error:
                raise self._explain_damage(name) from error
            done.add(column.cast(pa.string()).to_pylist())
        return done

    def write(self, table: Any) -> str:
        """Write rows as a part that counts as a whole or not at all.

        Args:
            table: A `pyarrow.Table`, with the columns of `rows.make_schema`.

        Returns:
            The name of the part.

        Raises:
            WhenceError: It cannot be written; earlier parts are kept.
        """
        base = self._write_pending(table)
        self._commit(base)
        return f"{base}{_PART}"

    def _write_pending(self, table: Any) -> str:
        """Write a part that does not count yet; return its base."""
        parquet = import_arrow("pyarrow.parquet")
        base = f"{self._stem}-{self._written:06}"
        self._written += 1
        pending = f"{CHECKPOINT}/{base}{_PENDING}"
        with explain_write(self._place.address):
            for name, rows in ((pending, table.select(["id"])), (f"{base}{_PART}", table)):
                with self._place.files.open_output_stream(self._place.join(name)) as file:
                    parquet.write_table(rows, file)
                self._place.sync(name)
        return base

    def _commit(self, base: str) -> None:
        with explain_write(self._place.address):
            self._place.move(f"{CHECKPOINT}/{base}{_PENDING}", f"{CHECKPOINT}/{base}{_PART}")

    def drop_failed(self) -> int:
        """Drop the rows with an error, so that their inputs are explained again.

        When this is killed, rows without an error may be lost, and are explained again, too; but
        no input gets two rows.

        Returns:
            How many rows were dropped.
        """
        pa, compute = import_arrow(), import_arrow("pyarrow.compute")
        committed, dropped = self._list_bases(_PART), 0
        for part in filter(self.count_rows, self.list_whole()):
            errors = pa.Table.from_batches(self.read(part, ["error"], 65536)).column("error")
            failed = compute.not_equal(errors, "")
            if not compute.any(failed).as_py():
                continue
            table = pa.Table.from_batches(self.read(part, None, 65536))
            rest = table.filter(compute.invert(failed))
            new = self._write_pending(rest) if len(rest) else None
            with explain_write(self._place.address):
                self._place.delete(f"{CHECKPOINT}/{_find_base(part, committed)}{_PART}")
            if new is not None:
                self._commit(new)
            with explain_write(self._place.address):
                self._place.delete(part)
            dropped += len(table) - len(rest)
        self.clean()  # Ray may write several files with one checkpoint
        return dropped

    def clean(self) -> list[str]:
        """Delete what a run that was killed left half done: its inputs are explained again.

        Those are parts without a checkpoint, or with one that is pending; and checkpoints without
        a part. Files with names that neither whence nor Ray gives are left alone.

        Returns:
            The names of what was deleted.
        """
        parts = [name for name in self._place.list_names() if _is_part(name)]
        pending, committed = self._list_bases(_PENDING), self._list_bases(_PART)
        whole = {base for part in parts if (base := _find_base(part, committed - pending))}
        lost = [part for part in parts if not _has_base(part, whole) and _NAME.fullmatch(part)]
        # Parts go before their checkpoints: when this is killed, the next run finds both again.
        lost += [f"{CHECKPOINT}/{base}{_PART}" for base in sorted(committed - whole)]
        lost += [f"{CHECKPOINT}/{base}{_PENDING}" for base in sorted(pending)]
        with explain_write(self._place.address):
            for name in lost:
                self._place.delete(name)
        return lost

    def delete(self) -> None:
        """Delete all parts, also those that a killed run left; files of others stay."""
        self.clean()
        bases = self._list_bases(_PENDING) | self._list_bases(_PART)
        with explain_write(self._place.address):
            for name in self._place.list_names():
                if _is_part(name) and _has_base(name, bases):
                    self._place.delete(name)

    def _list_bases(self, ending: str) -> set[str]:
        """List the parts whose checkpoints end so."""
        names = [name for name in self._place.list_names(CHECKPOINT) if name.endswith(ending)]
        if ending == _PART:
            names = [name for name in names if not name.endswith(_PENDING)]
        return {name.removesuffix(ending) for name in names}

    @contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        """Open a part as a `pyarrow.parquet.ParquetFile`."""
        parquet = import_arrow("pyarrow.parquet")
        with ExitStack() as stack:
            try:
                path = self._place.join(name)
                file = stack.enter_context(self._place.files.open_input_file(path))
                part = parquet.ParquetFile(file)
            except (OSError, ValueError) as error:
                raise self._explain_damage(name) from error
            refuse_pickles(part.schema_arrow)
            yield part

    def _explain_damage(self, name: str) -> WhenceError:
        return WhenceError(
            f"'{self._place.address}/{name}' is damaged or may not be read. Delete it and give the "
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
