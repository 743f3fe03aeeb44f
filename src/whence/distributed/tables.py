"""Read tables row by row: Parquet, JSON lines, CSV, WebDataset's archives and Lance."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from whence._util.extras import import_extra
from whence._util.pickles import has_pickles, refuse_pickles
from whence._util.text import first_line
from whence.distributed.addresses import Location, is_address
from whence.distributed.rows import import_arrow
from whence.errors import WhenceError

TableFormat = Literal["parquet", "jsonl", "csv", "webdataset", "lance"]
Record = dict[str, Any]

# Rows in memory at once; each may hold a photo.
_ROWS = 64
_KEY = "__key__"
# A file of an archive: the key of its row, and the column.
_MEMBER = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")

FORMATS: dict[str, TableFormat] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".tar": "webdataset",
    ".tar.gz": "webdataset",
    ".tgz": "webdataset",
    ".lance": "lance",
}


def guess_format(name: str) -> TableFormat | None:
    """Guess the format of a table by its name; None if it is no table."""
    lower = name.lower().rstrip("/")
    return next((FORMATS[ending] for ending in FORMATS if lower.endswith(ending)), None)


@dataclass(frozen=True)
class TableFiles:
    """The files of a table, all of one format.

    Attributes:
        format: Their format.
        files: Their paths or addresses, in order.
    """

    format: TableFormat
    files: tuple[str, ...]

    def iterate(self, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Read the rows of all files, of which a few are in memory at once.

        Args:
            columns: Those that are read; all if left out.

        Raises:
            WhenceError: A file cannot be read, or is damaged.
        """
        read = _READERS[self.format]
        for file in self.files:
            with _explain_damage(file, self.format):
                yield from read(file, columns)

    def count(self) -> int | None:
        """Count the rows, where the files tell their number."""
        if self.format == "parquet":
            return sum(int(_read_parquet_facts(file).num_rows) for file in self.files)
        if self.format == "lance":
            return sum(int(_open_lance(file).count_rows()) for file in self.files)
        return None

    @property
    def has_cheap_columns(self) -> bool:
        """Whether some columns, such as ids, can be read without the others."""
        is_local = not any(map(is_address, self.files))
        return self.format in ("parquet", "lance") or is_local


@contextmanager
def _explain_damage(file: str, format: TableFormat) -> Iterator[None]:
    pa = import_arrow()
    try:
        yield
    except FileNotFoundError:
        raise WhenceError(f"The table '{file}' is not there.") from None
    except (OSError, ValueError, KeyError, EOFError, tarfile.TarError, pa.ArrowException) as error:
        if isinstance(error, WhenceError):
            raise
        raise WhenceError(
            f"The table '{file}' cannot be read as {format}: {first_line(error)}."
        ) from error


def _read_parquet_facts(file: str) -> Any:
    parquet = import_arrow("pyarrow.parquet")
    place = Location(file)
    with _explain_damage(file, "parquet"), place.files.open_input_file(place.root) as opened:
        return parquet.read_metadata(opened)


def _read_parquet(file: str, columns: Sequence[str] | None) -> Iterator[Record]:
    parquet = import_arrow("pyarrow.parquet")
    place = Location(file)
    with place.files.open_input_file(place.root) as opened:
        table = parquet.ParquetFile(opened)
        known = _choose_columns(table.schema_arrow, columns)
        for batch in table.iter_batches(_ROWS, columns=known):
            yield from batch.to_pylist()


def _choose_columns(schema: Any, columns: Sequence[str] | None) -> list[str]:
    """Choose those of the columns that are there; if left out, all that hold no pickles."""
    if columns is None:
        return [name for name in schema.names if not has_pickles(schema.field(name).type)]
    refuse_pickles(schema, columns)
    return [name for name in columns if name in schema.names]


def _open_stream(file: str) -> Any:
    """Open a file to be read from its beginning, unpacked if its name ends in .gz."""
    place = Location(file)
    return place.files.open_input_stream(place.root, compression="detect")


def _read_lines(file: str, columns: Sequence[str] | None) -> Iterator[Record]:
    with _open_stream(file) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise WhenceError(f"Line {number} of '{file}' is not a JSON object.")
            yield record if columns is None else {c: record.get(c) for c in columns}


def make_csv_options(files: Sequence[str]) -> dict[str, Any]:
    """Make the options of `pyarrow.csv.open_csv` for files of one header.

    All columns are texts: as a number, the id 007 would be 7. The separator is that of the ending.
    """
    csv, pa = import_arrow("pyarrow.csv"), import_arrow()
    delimiter = "\t" if files[0].lower().endswith(".tsv") else ","
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with _open_stream(files[0]) as stream, csv.open_csv(stream, parse_options=parse) as reader:
        types = {name: pa.string() for name in reader.schema.names}
    convert = csv.ConvertOptions(column_types=types, strings_can_be_null=False)
    return {"parse_options": parse, "convert_options": convert}


def _read_csv(file: str, columns: Sequence[str] | None) -> Iterator[Record]:
    csv = import_arrow("pyarrow.csv")
    options = make_csv_options([file])
    with _open_stream(file) as stream, csv.open_csv(stream, **options) as reader:
        for batch in reader:
            for start in range(0, len(batch), _ROWS):
                records: list[Record] = batch.slice(start, _ROWS).to_pylist()
                yield from (
                    records
                    if columns is None
                    else ({c: record.get(c) for c in columns} for record in records)
                )


def _read_archive(file: str, columns: Sequence[str] | None) -> Iterator[Record]:
    """Read the rows of a WebDataset archive: files that differ in what follows the first dot."""
    wants_content = columns is None or set(columns) - {_KEY}
    with _open_archive(file) as archive:
        record: Record = {}
        for member in archive:
            vars(archive)["members"] = []  # an archive remembers all that it has seen
            match = _MEMBER.fullmatch(member.name)
            if not member.isfile() or match is None:
                continue
            key, column = match[1], match[2].lower()
            if record and record[_KEY] != key:
                yield record
                record = {}
            record[_KEY] = key
            if wants_content and (columns is None or column in columns):
                content = archive.extractfile(member)
                record[column] = content.read() if content is not None else None
            elif wants_content:
                record.setdefault(column, None)
        if record:
            yield record


@contextmanager
def _open_archive(file: str) -> Iterator[tarfile.TarFile]:
    if not is_address(file):  # content that is not wanted is skipped, and not read
        with tarfile.open(file) as archive:
            yield archive
        return
    place = Location(file)
    with (
        place.files.open_input_stream(place.root, compression=None) as stream,
        tarfile.open(fileobj=stream, mode="r|*") as archive,
    ):
        yield archive


def _open_lance(file: str) -> Any:
    return import_extra("lance", "pylance", "lance").dataset(os.fspath(file))


def _read_lance(file: str, columns: Sequence[str] | None) -> Iterator[Record]:
    dataset = _open_lance(file)
    known = _choose_columns(dataset.schema, columns)
    for batch in dataset.scanner(columns=known, batch_size=_ROWS).to_batches():
        yield from batch.to_pylist()


_READERS: dict[TableFormat, Callable[[str, Sequence[str] | None], Iterator[Record]]] = {
    "parquet": _read_parquet,
    "jsonl": _read_lines,
    "csv": _read_csv,
    "webdataset": _read_archive,
    "lance": _read_lance,
}
