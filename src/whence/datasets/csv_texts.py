"""Texts in a table: CSV or TSV with a header."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from whence._util.files import is_file, is_folder
from whence.datasets.folders import first_file
from whence.datasets.listed import Listed
from whence.datasets.sample import Dataset, Label, Sample
from whence.datasets.tables import Table, header_has, read_table
from whence.errors import WhenceError
from whence.inputs.sources import Kind
from whence.inputs.texts import validate_text

TEXTS = ("text", "sentence", "review")
LABELS = ("label", "class")
_SUFFIXES = (".tsv", ".csv")
_SPLITS = ("test", "val", "validation", "dev", "train")


def recognises(path: Path) -> bool:
    """Whether this is a table of texts, or a folder with one."""
    return any(header_has(file, TEXTS) for file in _candidates(path, None))


def open_dataset(path: Path, split: str | None) -> Dataset:
    """The texts of a table.

    Raises:
        WhenceError: There is no table, or none of that split, or it holds no texts.
    """
    file = next((one for one in _candidates(path, split) if header_has(one, TEXTS)), None)
    if file is None:
        which = "table" if split is None else f"{split}.tsv or {split}.csv"
        raise WhenceError(
            f"'{path}' has no {which} with a header that names a column {', '.join(TEXTS)}."
        )
    table = read_table(file, TEXTS)
    if table is None or not table.rows:
        raise WhenceError(f"The table '{file}' holds no texts.")
    return Texts(file, table)


class Texts(Listed[list[str]]):
    """The rows of a table, named by its file and their number."""

    kind: Kind = "text"

    def __init__(self, file: Path, table: Table) -> None:
        records = {f"{file.stem}-{number}": row for number, row in enumerate(table.rows, 1)}
        super().__init__(f"csv-{file.stem}", records)
        self._table = table
        self._text = table.position(TEXTS)
        self._label = table.position(LABELS)
        given = {self._given(row) for row in table.rows if table.whole(row)}
        # A class called "1" among others called "one" or "1b" is a name; alone, it is an index.
        self._indices = all(re.fullmatch(r"-1|\d{1,9}", one) for one in given if one)

    def _sample(self, name: str, record: list[str]) -> Sample:
        if not self._table.whole(record):
            raise WhenceError(
                f"Row '{name}' has {len(record)} fields, the header {len(self._table.columns)}."
            )
        assert self._text is not None
        return Sample(name, validate_text(record[self._text], f"Row '{name}'"), self._class(record))

    def _facts(self, record: list[str]) -> list[Any]:
        return [record]

    def _given(self, row: list[str]) -> str:
        return row[self._label].strip() if self._label is not None else ""

    def _class(self, row: list[str]) -> Label:
        given = self._given(row)
        if not given:
            return None
        if not self._indices:
            return given
        return int(given) if int(given) >= 0 else None  # GLUE marks what has no label with -1


def _candidates(path: Path, split: str | None) -> list[Path]:
    """The tables that may be meant: of a folder, that of the split, or any if there is no split."""
    if is_file(path):
        suits = path.suffix.lower() in (*_SUFFIXES, ".txt") and split in (None, path.stem)
        return [path] if suits else []
    if not is_folder(path):
        return []
    named = [
        first_file(path / f"{name}{suffix}" for suffix in _SUFFIXES)
        for name in ([split] if split is not None else _SPLITS)
    ]
    found = [file for file in named if file is not None]
    if split is None:
        try:
            others = sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
        except OSError:
            others = []
        found += [file for file in others if file not in found and is_file(file)]
    return found
