"""Where the inputs of a run come from: files, or rows of a table; each with an id."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from whence.distributed.addresses import is_address, split_options
from whence.distributed.columns import find_content_column, find_id_column
from whence.distributed.contents import Item
from whence.distributed.file_source import NOUNS, FileSource
from whence.distributed.folder import INPUTS, RUN, ResultFolder
from whence.distributed.ids import IdSet
from whence.distributed.listing import join_roots, list_ids, name_files
from whence.distributed.rows import import_arrow
from whence.distributed.table_source import TableSource
from whence.distributed.tables import Record, TableFiles, TableFormat, guess_format
from whence.errors import WhenceError
from whence.inputs.images import IMAGES
from whence.inputs.sources import TEXTS, Kind

_SUFFIXES: dict[Kind, frozenset[str]] = {"image": IMAGES, "text": TEXTS}
# Rows that are read to know what columns hold.
_EXAMPLES = 64
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
        if name == RUN:
            raise WhenceError(
                f"'{argument}' holds results of whence, not inputs; `whence report` shows them."
            )
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
            held = [_count(len(ids["image"]), "photo"), _count(len(ids["text"]), "text file")]
            raise WhenceError(
                f"The inputs hold {' and '.join(held)}, such as '{ids['text'][0]}'; name a "
                f"--model, which takes one of the two, or a glob such as 'photos/**/*.jpg'."
            )
        kind = "image" if len(ids["image"]) else "text"
    if not len(ids[kind]):
        is_empty = not any(map(len, ids.values()))
        what = "photo and no text file" if is_empty else NOUNS[kind]
        raise WhenceError(f"'{arguments[0]}' holds no {what}.")
    _, options = split_options(arguments[0]) if is_address(arguments[0]) else ("", "")
    others += sum(len(held) for one, held in ids.items() if one != kind)
    return FileSource(kind, root, ids[kind], options, others)


def _read_example(table: TableFiles) -> Record:
    """Read the first value of each column that is there, from the first rows.

    Raises:
        WhenceError: The table has no rows.
    """
    example: Record = {}
    for record in islice(table.iterate(), _EXAMPLES):
        known = {name: value for name, value in record.items() if value is not None}
        example = {**record, **known, **{n: v for n, v in example.items() if v is not None}}
        if example and all(value is not None for value in example.values()):
            break
    if not example:
        raise WhenceError(f"The table '{table.files[0]}' has no rows.")
    return example


def _open_table(
    table: TableFiles, kind: Kind | None, column: str | None, id_column: str | None
) -> TableSource:
    first = _read_example(table)
    found_id = find_id_column(first, id_column)
    found, found_kind = find_content_column(first, column, kind, found_id)
    columns: tuple[str, ...] = (found,)
    if table.format == "webdataset" and column is None:
        columns = _PHOTO_ENDINGS if found_kind == "image" else _TEXT_ENDINGS
    return TableSource(table, found_kind, columns, found_id)


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"
