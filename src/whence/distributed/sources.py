"""Where the inputs of a run come from: files, or rows of a table; each with an id."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from whence.distributed.addresses import Place, explain_write, is_address, split_options
from whence.distributed.columns import find_content_column, find_id_column
from whence.distributed.contents import Item, join_path, read_content, read_file, to_id
from whence.distributed.folder import INPUTS, ResultFolder
from whence.distributed.ids import IdSet
from whence.distributed.listing import join_roots, list_ids, name_files
from whence.distributed.rows import import_arrow
from whence.distributed.tables import TableFiles, TableFormat, guess_format
from whence.errors import WhenceError
from whence.inputs.images import IMAGES
from whence.inputs.sources import TEXTS, Kind

_SUFFIXES: dict[Kind, frozenset[str]] = {"image": IMAGES, "text": TEXTS}
_NOUNS: dict[Kind, str] = {"image": "photos", "text": "texts"}
# Columns of WebDataset that hold texts or photos: a row may have any of them.
_TEXT_ENDINGS = ("txt", "text")
_PHOTO_ENDINGS = tuple(suffix.removeprefix(".") for suffix in sorted(IMAGES))


class InputSource(Protocol):
    """The inputs of a run, each with an id."""

    @property
    def kind(self) -> Kind:
        """Whether they are photos or texts."""

    @property
    def notes(self) -> list[str]:
        """What their owner should know."""

    @property
    def facts(self) -> dict[str, Any]:
        """Where they come from, so that they can be opened again. Plain data.

        "format" is "files" or that of a table, and "paths" are the addresses of the table's files;
        "id" is its column of ids and "columns" are those of photos or texts, of which each row has
        one. Of files, "root" is the folder of which ids are relative.
        """

    def iterate_items(self) -> Iterator[Item]:
        """Go through all inputs, of which a few are in memory at once."""

    def find_items(self, ids: Collection[str]) -> Iterator[Item]:
        """Find the inputs with these ids; rows that are gone are left out."""

    def read_ids(self) -> IdSet | None:
        """Read all ids; None where that would take as long as reading all inputs."""


@dataclass(frozen=True)
class FileSource:
    """Photos or texts in files, with their paths below a folder as ids.

    Attributes:
        kind: Whether they are photos or texts.
        root: The folder's absolute path, or its address.
        ids: Their ids, a `pyarrow.ChunkedArray`.
        options: Of the address's file system.
        others: The number of files that are neither photos nor texts, or of the other kind.
    """

    kind: Kind
    root: str
    ids: Any
    options: str = ""
    others: int = 0

    @property
    def notes(self) -> list[str]:
        """What its owner should know."""
        if not self.others:
            return []
        files = "1 other file was" if self.others == 1 else f"{self.others:,} other files were"
        return [f"{files} left out: only {_NOUNS[self.kind]} are explained"]

    def get_address(self, name: str) -> str:
        """The path or address of the file with an id."""
        return join_path(self.root, name) + self.options

    def iterate_items(self) -> Iterator[Item]:
        """Go through all files."""
        for chunk in self.ids.chunks:
            for name in chunk:
                yield self._make_item(name.as_py())

    def find_items(self, ids: Collection[str]) -> Iterator[Item]:
        """Go through the files with these ids, whether they are there or not."""
        return map(self._make_item, ids)

    def _make_item(self, name: str) -> Item:
        return Item(name, partial(read_file, self.get_address(name), self.kind))

    def read_ids(self) -> IdSet:
        """Read all ids."""
        ids = IdSet()
        for chunk in self.ids.chunks:
            ids.add(chunk.to_pylist())
        return ids

    @property
    def facts(self) -> dict[str, Any]:
        """Where the files are."""
        return {"format": "files", "kind": self.kind, "root": self.root, "options": self.options}

    def write_list(self, place: Place, name: str) -> None:
        """Write the ids and paths of all files as Parquet, whole or not at all."""
        pa, parquet = import_arrow(), import_arrow("pyarrow.parquet")
        schema = pa.schema([("id", pa.string()), ("path", pa.string())])
        beside = f"{name}.new"
        with explain_write(place.address):
            with (
                place.files.open_output_stream(place.join(beside)) as file,
                parquet.ParquetWriter(file, schema) as writer,
            ):
                for chunk in self.ids.chunks:
                    paths = pa.array([self.get_address(one) for one in chunk.to_pylist()])
                    writer.write_table(pa.table([chunk, paths], schema=schema))
            place.move(beside, name)


@dataclass(frozen=True)
class TableSource:
    """Photos or texts in a column of a table.

    Attributes:
        table: Its files.
        kind: Whether they are photos or texts.
        columns: The column that holds them; of archives, all that may hold the one of a row.
        id_column: The column of ids.
    """

    table: TableFiles
    kind: Kind
    columns: tuple[str, ...]
    id_column: str

    @property
    def notes(self) -> list[str]:
        """What its owner should know: nothing."""
        return []

    @property
    def facts(self) -> dict[str, Any]:
        """Where the table is, and which columns were read."""
        return {
            "format": self.table.format,
            "kind": self.kind,
            "paths": list(self.table.files),
            "columns": list(self.columns),
            "id": self.id_column,
            "folder": self.folder,
        }

    @property
    def folder(self) -> str:
        """Where paths in the table begin."""
        return split_options(self.table.files[0])[0].rpartition("/")[0]

    def iterate_items(self) -> Iterator[Item]:
        """Go through all rows.

        Raises:
            WhenceError: The table cannot be read, or a row has no id.
        """
        for record in self.table.iterate([self.id_column, *self.columns]):
            name = to_id(record.get(self.id_column), self.id_column)
            values = (record.get(column) for column in self.columns)
            value = next((one for one in values if one is not None), None)
            yield Item(name, partial(read_content, value, self.kind, self.folder))

    def find_items(self, ids: Collection[str]) -> Iterator[Item]:
        """Find the rows with these ids, in the order of the table."""
        wanted = set(ids)
        for item in self.iterate_items():
            if item.id in wanted:
                yield item
                wanted.discard(item.id)
                if not wanted:
                    return

    def read_ids(self) -> IdSet | None:
        """Read all ids, where the rest need not be read for it."""
        if not self.table.has_cheap_columns:
            return None
        records = self.table.iterate([self.id_column])
        return IdSet(to_id(one.get(self.id_column), self.id_column) for one in records)


def open_source(
    arguments: Sequence[str],
    kind: Kind | None = None,
    column: str | None = None,
    id_column: str | None = None,
) -> InputSource:
    """Open the inputs that arguments name: files, folders, globs, addresses, or tables.

    Args:
        arguments: All of them files, or all tables of one format.
        kind: What the model takes; found if left out.
        column: Of tables, the column of photos or texts.
        id_column: Of tables, the column of ids.

    Raises:
        WhenceError: There is no input, or something about the arguments is wrong.
    """
    if not arguments:
        raise WhenceError("Nothing to explain: name files, folders, globs, tables or addresses.")
    table = find_table(arguments)
    if table is not None:
        return _open_table(table, kind, column, id_column)
    if column is not None or id_column is not None:
        raise WhenceError("--column and --id are for tables, and the inputs are files.")
    return _open_files(arguments, kind)


def open_recorded_source(folder: ResultFolder) -> InputSource:
    """Open the inputs of a folder of results again.

    Raises:
        WhenceError: The folder does not tell where they are.
    """
    described = dict(folder.run.get("source") or {})
    try:
        if described["format"] == "files":
            with folder.place.files.open_input_file(folder.place.join(INPUTS)) as file:
                ids = import_arrow("pyarrow.parquet").read_table(file, columns=["id"]).column(0)
            kind = folder.description.kind
            return FileSource(kind, described["root"], ids, described["options"])
        table = TableFiles(described["format"], tuple(described["paths"]))
        columns = tuple(described["columns"])
        return TableSource(table, described["kind"], columns, described["id"])
    except (LookupError, OSError) as error:
        raise WhenceError(f"'{folder.address}' does not tell where its inputs are.") from error


def find_table(arguments: Sequence[str]) -> TableFiles | None:
    """Find the table that arguments name; None if they name photos or texts.

    A folder is a table if it holds files of a table's format, and no photo and no text file.

    Raises:
        WhenceError: They name tables of several formats, or tables and files.
    """
    formats: set[TableFormat | None] = set()
    files: list[str] = []
    for argument in arguments:
        format, found = _find_tables(argument)
        formats.add(format)
        files += found
    if len(formats) > 1:
        listed = ", ".join(sorted(one or "files" for one in formats))
        raise WhenceError(f"The inputs are of several kinds: {listed}. Explain them apart.")
    format = formats.pop()
    return None if format is None else TableFiles(format, tuple(dict.fromkeys(files)))


def _find_tables(argument: str) -> tuple[TableFormat | None, list[str]]:
    plain, options = split_options(argument)
    format = guess_format(plain)
    if format == "lance":
        return format, [_to_absolute(argument)]
    if format is None and not _may_hold_tables(plain):
        return None, []
    named = name_files(argument)
    root, known = named.root, _SUFFIXES["image"] | _SUFFIXES["text"]
    found: dict[TableFormat, list[str]] = {}
    for name in named.names:
        if os.path.splitext(name)[1].lower() in known:
            return None, []
        inner = name.partition(".lance/")
        one = guess_format(name) or ("lance" if inner[1] else None)
        if one is not None:
            file = inner[0] + ".lance" if inner[1] else name
            found.setdefault(one, []).append(f"{root.rstrip('/')}/{file}{options}")
    if len(found) > 1:
        raise WhenceError(
            f"'{argument}' holds tables of several formats: {', '.join(sorted(found))}. Name one, "
            f"such as '{argument.rstrip('/')}/*.parquet'."
        )
    return next(((one, sorted(set(files))) for one, files in found.items()), (None, []))


def _may_hold_tables(argument: str) -> bool:
    """Whether it is a folder, a glob or an address, and not one file that is no table."""
    return os.path.splitext(argument)[1].lower() not in _SUFFIXES["image"] | _SUFFIXES["text"] and (
        not os.path.isfile(os.path.expanduser(argument))
    )


def _to_absolute(argument: str) -> str:
    return argument if is_address(argument) else os.path.abspath(os.path.expanduser(argument))


def _open_files(arguments: Sequence[str], kind: Kind | None) -> FileSource:
    named = [name_files(argument) for argument in arguments]
    root = join_roots([one.root for one in named])
    ids, others = list_ids(named, root, _SUFFIXES)
    if kind is None:
        if len(ids["image"]) and len(ids["text"]):
            raise WhenceError(
                f"The inputs hold {len(ids['image']):,} photos and {len(ids['text']):,} texts; "
                f"name a --model, which takes one of the two, or explain them apart."
            )
        kind = "image" if len(ids["image"]) else "text"
    if not len(ids[kind]):
        is_empty = not any(map(len, ids.values()))
        what = "photo and no text file" if is_empty else _NOUNS[kind]
        raise WhenceError(f"'{arguments[0]}' holds no {what}.")
    _, options = split_options(arguments[0]) if is_address(arguments[0]) else ("", "")
    others += sum(len(held) for one, held in ids.items() if one != kind)
    return FileSource(kind, root, ids[kind], options, others)


def _open_table(
    table: TableFiles, kind: Kind | None, column: str | None, id_column: str | None
) -> TableSource:
    first = next(table.iterate(), None)
    if first is None:
        raise WhenceError(f"The table '{table.files[0]}' has no rows.")
    found_id = find_id_column(first, id_column)
    found, found_kind = find_content_column(first, column, kind, found_id)
    columns: tuple[str, ...] = (found,)
    if table.format == "webdataset" and column is None:
        columns = _PHOTO_ENDINGS if found_kind == "image" else _TEXT_ENDINGS
    return TableSource(table, found_kind, columns, found_id)
