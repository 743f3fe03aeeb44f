"""Inputs of a run that are files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from whence.distributed.addresses import Location, explain_write
from whence.distributed.contents import Item, join_path, read_file
from whence.distributed.ids import IdSet
from whence.distributed.rows import import_arrow
from whence.inputs.sources import Kind

NOUNS: dict[Kind, str] = {"image": "photos", "text": "texts"}


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
        return [f"{files} left out: only {NOUNS[self.kind]} are explained"]

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

    def write_list(self, place: Location, name: str) -> None:
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
