"""Find rows of a result by their ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import cached_property
from threading import Lock
from typing import Any

from whence.distributed.folder import ResultFolder
from whence.distributed.rows import Row, import_arrow
from whence.errors import WhenceError

# Parts that are kept in memory; each has some hundred rows.
_KEPT_PARTS = 32


class RowLookup:
    """Finds rows by id. The ids and their parts are read once; rows when they are asked for.

    Another process gets the folder's address, and reads it itself.
    """

    def __init__(self, folder: ResultFolder) -> None:
        self.folder = folder
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        place = self.folder.place
        return _open_lookup, (place.root if place.is_local else place.address,)

    def list_ids(self) -> list[str]:
        """List the ids of all rows, sorted."""
        return sorted(self._parts)

    def has_row(self, name: str) -> bool:
        """Whether an id has a row."""
        return name in self._parts

    def find_row(self, name: str) -> Row:
        """Read the row of an id.

        Raises:
            WhenceError: There is none, or its part is damaged.
        """
        (row,) = self.find_rows([name])
        return row

    def find_rows(self, names: Iterable[str]) -> list[Row]:
        """Read the rows of some ids, in their order.

        Raises:
            WhenceError: There is no such row, or its part is damaged.
        """
        return [self._find_row(name) for name in names]

    def _find_row(self, name: str) -> Row:
        part = self._parts.get(name)
        if part is None:
            raise WhenceError(f"'{self.folder.address}' has no row with the id '{name}'.")
        table = self._read_part(part)
        place = import_arrow("pyarrow.compute").index(table.column("id"), name).as_py()
        row: Row = table.slice(place, 1).to_pylist()[0]
        return row

    @cached_property
    def _parts(self) -> dict[str, str]:
        return {
            name: part
            for part in self.folder.list_parts()
            for batch in self.folder.read_batches(["id"], 65536, [part])
            for name in batch.column("id").to_pylist()
        }

    def _read_part(self, part: str) -> Any:
        with self._lock:
            table = self._kept.pop(part, None)
            if table is None:
                batches = self.folder.read_batches(None, 65536, [part])
                table = import_arrow().Table.from_batches(list(batches))
            self._kept[part] = table
            if len(self._kept) > _KEPT_PARTS:
                self._kept.popitem(last=False)
        return table


def _open_lookup(address: str) -> RowLookup:
    return RowLookup(ResultFolder(address))
