"""Read tables in text files: CSV, TSV and the like, with a header that decides the separator."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from whence.errors import WhenceError

# Columns that may hold texts, the first of these first.
TEXT_COLUMNS = ("text", "sentence", "review")
_SEPARATORS = "\t,;|"
# Stands in no text, so that a line of a table with one column is one field.
_NONE = "\x1f"


@dataclass(frozen=True)
class DelimitedTable:
    """The columns and the rows of a table.

    Attributes:
        columns: The names of the columns, in lower case.
        rows: The fields of each row; a damaged row has too few or too many.
        key: The position of the column that `read_table` was asked for.
    """

    columns: list[str]
    rows: list[list[str]]
    key: int

    def find_column(self, names: Sequence[str]) -> int | None:
        """Find the position of the first of these columns that the table has."""
        return _find_first(self.columns, names)

    def is_whole(self, row: list[str]) -> bool:
        """Whether a row has a field for each column."""
        return len(row) == len(self.columns)

    def list_whole_rows(self) -> list[list[str]]:
        """List the rows that have a field for each column."""
        return [row for row in self.rows if self.is_whole(row)]


def read_table(path: Path, names: Sequence[str]) -> DelimitedTable | None:
    """Read a table that has a column of one of these names; None if it has none.

    The header decides on the separator: guessing it from texts, which hold commas of their own,
    goes wrong. Quotes are taken as in CSV if every row is then whole, and otherwise, as in the TSV
    files of GLUE, for characters like others.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            content = file.read()
    except OSError as error:
        raise WhenceError(f"'{path}' cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise WhenceError(f"'{path}' is not text in UTF-8.") from None
    separator = _find_separator(content, names)
    if separator is None:
        return None
    best: DelimitedTable | None = None
    for table in _parse_tables(content, separator, names):
        if table.rows and all(map(table.is_whole, table.rows)):
            return table
        best = best or table
    if best is None:
        raise WhenceError(f"'{path}' is damaged: a field of its table has no end.")
    return best


def has_column(path: Path, names: Sequence[str]) -> bool:
    """Whether a file begins with a header that names such a column."""
    try:
        with path.open("rb") as file:
            start = file.read(4096).decode("utf-8-sig", "ignore")
    except OSError:
        return False
    return _find_separator(start, names) is not None


def _find_separator(content: str, names: Sequence[str]) -> str | None:
    """Find the separator that gives the most columns in the header, a wanted one among them."""
    header = content.lstrip("\r\n").split("\n", 1)[0].split("\r", 1)[0]
    counts = {}
    for separator in _SEPARATORS:
        columns = _parse_columns(next(csv.reader([header], delimiter=separator), []))
        if set(columns) & set(names):
            counts[separator] = len(columns)
    if not counts:
        return None
    best = max(counts, key=lambda separator: counts[separator])
    return best if counts[best] > 1 else _NONE


def _parse_tables(content: str, separator: str, names: Sequence[str]) -> Iterator[DelimitedTable]:
    """Parse the table with quotes strictly as in CSV; without quotes; with any quotes."""
    for options in ({"strict": True}, {"quoting": csv.QUOTE_NONE}, {}):
        lines = csv.reader(io.StringIO(content, newline=""), delimiter=separator, **options)
        try:
            rows = [row for row in lines if row]
        except csv.Error:
            continue
        columns = _parse_columns(rows[0])
        key = _find_first(columns, names)
        if key is not None:  # a quote taken as a character is part of a column's name
            yield DelimitedTable(columns, rows[1:], key)


def _parse_columns(header: Sequence[str]) -> list[str]:
    return [column.strip().lower() for column in header]


def _find_first(columns: list[str], names: Sequence[str]) -> int | None:
    return next((columns.index(name) for name in names if name in columns), None)
