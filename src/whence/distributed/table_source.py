"""Inputs of a run that are rows of a table."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from whence.distributed.addresses import split_options
from whence.distributed.contents import Item, read_content, to_id
from whence.distributed.ids import IdSet
from whence.distributed.tables import TableFiles
from whence.inputs.sources import Kind


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
