"""Read texts from a table: CSV or TSV with a header."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from whence._util.files import is_file, is_folder
from whence.datasets.base import Dataset, Label, Sample
from whence.datasets.folders import find_first_file
from whence.errors import WhenceError
from whence.inputs.tables import TEXT_COLUMNS, DelimitedTable, has_column, read_table
from whence.inputs.texts import validate_text

_TEXTS = (*TEXT_COLUMNS, "prompt")
_SUFFIXES = (".tsv", ".csv")
_SPLITS = ("test", "val", "validation", "dev", "train")


def has_layout(path: Path) -> bool:
    """Whether this is a table of texts, or a folder with one."""
    return _find_table(path, None) is not None


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the texts of a table, named by its file and the number of their row."""
    file = _find_table(path, split)
    if file is None:
        which = "table" if split is None else f"{split}.tsv or {split}.csv"
        columns = ", ".join(_TEXTS)
        raise WhenceError(f"'{path}' has no {which} with a header that names a column {columns}.")
    table = read_table(file, _TEXTS)
    if table is None or not table.rows:
        raise WhenceError(f"The table '{file}' holds no texts.")
    column = table.find_column(("label", "class"))
    whole = table.list_whole_rows()
    labels = {row[column].strip() for row in whole} if column is not None else set()
    # A class called "1" among others called "one" or "1b" is a name; alone, it is an index.
    are_indices = all(re.fullmatch(r"-1|\d{1,9}", label) for label in labels if label)
    answers = table.find_column(("answer",))
    records = {
        f"{file.stem}-{number}": TextRecord(table, row, column, are_indices, answers)
        for number, row in enumerate(table.rows, 1)
    }
    return Dataset(f"csv-{file.stem}", records, "text")


@dataclass(frozen=True, slots=True)
class TextRecord:
    """One row of a table of texts; its label is a class index or a name.

    A prompt of a language model may have an answer instead.
    """

    table: DelimitedTable
    row: list[str]
    label_column: int | None
    are_indices: bool
    answer_column: int | None = None

    def read_sample(self, name: str) -> Sample:
        """Return the text and its label."""
        if not self.table.is_whole(self.row):
            fields, columns = len(self.row), len(self.table.columns)
            raise WhenceError(f"Row '{name}' has {fields} fields, the header {columns}.")
        text = validate_text(self.row[self.table.key], f"Row '{name}'")
        answer = "" if self.answer_column is None else self.row[self.answer_column].strip()
        return Sample(name, text, self._parse_label(), answer=answer)

    def list_facts(self) -> list[object]:
        """Return the whole row."""
        return [self.row]

    def _parse_label(self) -> Label:
        label = self.row[self.label_column].strip() if self.label_column is not None else ""
        if not label or not self.are_indices:
            return label or None
        return int(label) if int(label) >= 0 else None  # GLUE marks a missing label with -1


def _find_table(path: Path, split: str | None) -> Path | None:
    return next((one for one in _list_files(path, split) if has_column(one, _TEXTS)), None)


def _list_files(path: Path, split: str | None) -> list[Path]:
    """List the files that may be the table; of a folder, that of the split, or any without one."""
    if is_file(path):
        fits = path.suffix.lower() in (*_SUFFIXES, ".txt") and split in (None, path.stem)
        return [path] if fits else []
    if not is_folder(path):
        return []
    names = [split] if split is not None else _SPLITS
    tables = (find_first_file(path / f"{name}{suffix}" for suffix in _SUFFIXES) for name in names)
    files = [file for file in tables if file is not None]
    if split is None:
        others = sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
        files += [file for file in others if file not in files and is_file(file)]
    return files
