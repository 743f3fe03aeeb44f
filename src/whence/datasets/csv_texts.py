"""The format csv: texts and labels in a CSV or TSV table with a header."""

from __future__ import annotations

import re
from pathlib import Path

from typing_extensions import override

from whence._util.files import is_file, is_folder
from whence.datasets.base import JsonValue, ListedDataset
from whence.datasets.folders import find_first_file
from whence.datasets.sample import Dataset, Label, Sample
from whence.errors import WhenceError
from whence.inputs.sources import Kind
from whence.inputs.tables import TEXT_COLUMNS, DelimitedTable, has_column, read_table
from whence.inputs.texts import validate_text

_LABELS = ("label", "class")
_SUFFIXES = (".tsv", ".csv")
_SPLITS = ("test", "val", "validation", "dev", "train")


def has_layout(path: Path) -> bool:
    """Whether the path is a table of texts, or a folder with one."""
    return any(has_column(file, TEXT_COLUMNS) for file in _list_tables(path, None))


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the texts of a table.

    Raises:
        WhenceError: There is no table, or none of that split, or it holds no texts.
    """
    file = next((one for one in _list_tables(path, split) if has_column(one, TEXT_COLUMNS)), None)
    if file is None:
        which = "table" if split is None else f"{split}.tsv or {split}.csv"
        raise WhenceError(
            f"'{path}' has no {which} with a header that names a column {', '.join(TEXT_COLUMNS)}."
        )
    table = read_table(file, TEXT_COLUMNS)
    if table is None or not table.rows:
        raise WhenceError(f"The table '{file}' holds no texts.")
    return TextDataset(file, table)


class TextDataset(ListedDataset[list[str]]):
    """Texts of a table, named by its file and their row."""

    kind: Kind = "text"

    def __init__(self, file: Path, table: DelimitedTable) -> None:
        records = {f"{file.stem}-{number}": row for number, row in enumerate(table.rows, 1)}
        super().__init__(f"csv-{file.stem}", records)
        self._table = table
        self._text = table.find_column(TEXT_COLUMNS) or 0
        self._label = table.find_column(_LABELS)
        labels = {self._get_label_text(row) for row in table.rows if table.is_whole(row)}
        # A class called "1" among others called "one" or "1b" is a name; alone, it is an index.
        self._indices = all(re.fullmatch(r"-1|\d{1,9}", one) for one in labels if one)

    @override
    def _read_sample(self, name: str, record: list[str]) -> Sample:
        if not self._table.is_whole(record):
            raise WhenceError(
                f"Row '{name}' has {len(record)} fields, the header {len(self._table.columns)}."
            )
        text = validate_text(record[self._text], f"Row '{name}'")
        return Sample(name, text, self._parse_label(record))

    @override
    def _list_facts(self, record: list[str]) -> list[JsonValue]:
        return [record]

    def _get_label_text(self, row: list[str]) -> str:
        return row[self._label].strip() if self._label is not None else ""

    def _parse_label(self, row: list[str]) -> Label:
        text = self._get_label_text(row)
        if not text:
            return None
        if not self._indices:
            return text
        return int(text) if int(text) >= 0 else None  # GLUE marks texts without a label with -1


def _list_tables(path: Path, split: str | None) -> list[Path]:
    """List the tables of a path: of a folder, that of the split, or all if there is no split."""
    if is_file(path):
        suits = path.suffix.lower() in (*_SUFFIXES, ".txt") and split in (None, path.stem)
        return [path] if suits else []
    if not is_folder(path):
        return []
    named = [
        find_first_file(path / f"{name}{suffix}" for suffix in _SUFFIXES)
        for name in ([split] if split is not None else _SPLITS)
    ]
    tables = [file for file in named if file is not None]
    if split is None:
        try:
            others = sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
        except OSError:
            others = []
        tables += [file for file in others if file not in tables and is_file(file)]
    return tables
