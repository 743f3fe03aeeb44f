"""Open the result of a run over many inputs: explanations by id, tables, what failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence._util.extras import import_extra
from whence.distributed.folder import ResultFolder
from whence.distributed.lookup import RowLookup
from whence.distributed.restoring import load_model_again, restore_inputs
from whence.distributed.rows import import_arrow
from whence.distributed.sampling import draw_rows
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.models import LoadedModel

if TYPE_CHECKING:
    from pandas import DataFrame

_COLUMNS = ("id", "target", "name", "probability", "notes", "error")


class StoredResult:
    """The result of a run over many inputs, to be looked at.

    ``result["cats/1.jpg"]`` is the stored explanation of an input; ``for name in result`` goes
    through the ids, and ``len(result)`` counts them, failed inputs included.

    Attributes:
        folder: The files.
        model: Where the model is now, if not where it was; for `restore` alone.
    """

    def __init__(self, folder: ResultFolder, model: str | None = None) -> None:
        _ = folder.description  # another folder is refused
        self.folder = folder
        self.model = model
        self._lookup = RowLookup(folder)

    def __repr__(self) -> str:
        """The result in one line."""
        facts, state = self.folder.description.facts, self.folder.run.get("state", "unknown")
        made = f"method {facts.get('method')}, model {facts.get('model')}"
        return f"StoredResult('{self.folder.address}': {len(self):,} inputs, {made}, {state})"

    def __len__(self) -> int:
        """The number of inputs that have a row."""
        return self.folder.count_rows()

    def __iter__(self) -> Iterator[str]:
        """The ids of the inputs, sorted."""
        return iter(self._lookup.list_ids())

    def __contains__(self, name: object) -> bool:
        """Whether an input has a row."""
        return isinstance(name, str) and self._lookup.has_row(name)

    def __getitem__(self, name: str) -> Explanation:
        """The stored explanation of an input, without its photo and without logits.

        Raises:
            WhenceError: There is no such input, or it was not explained; the error says why.
        """
        return self.folder.read_explanation(self._lookup.find_row(name))

    def restore(self, name: str) -> Explanation:
        """Join a stored explanation with its input, which is read again, to plot it on the photo.

        The model is loaded at the first call, since it tells what it saw of a photo; nothing is
        explained again.

        Raises:
            WhenceError: The input or the model is gone, or has changed since.
        """
        (one,) = restore_inputs(self.folder, [self._read_explained(name)], self._loaded_model)
        if one.prepared is None:
            raise WhenceError(f"'{name}': {one.notes[-1]}.")
        return one.explanation

    def _read_explained(self, name: str) -> dict[str, Any]:
        row = self._lookup.find_row(name)
        if row["error"]:
            raise WhenceError(f"'{name}' was not explained: {row['error']}")
        return row

    @cached_property
    def _loaded_model(self) -> LoadedModel:
        return load_model_again(self.folder, self.model)

    def draw(self, count: int, seed: int = 0) -> list[str]:
        """Draw ids of explained inputs at random, the same for a seed."""
        return [row["id"] for row in draw_rows(self.folder, count, seed).rows]

    def list_errors(self) -> dict[str, str]:
        """The errors of all inputs that were not explained, by their ids."""
        compute = import_arrow("pyarrow.compute")
        errors: dict[str, str] = {}
        for batch in self.folder.read_batches(["id", "error"], 8192):
            failed = batch.filter(compute.not_equal(batch.column("error"), ""))
            columns = (failed.column(name).to_pylist() for name in ("id", "error"))
            errors.update(zip(*columns, strict=True))
        return errors

    def to_pandas(self, columns: Sequence[str] = _COLUMNS) -> DataFrame:
        """The rows as a table of pandas, without scores if not asked for.

        Raises:
            WhenceError: pandas is not installed, or there is no such column.
        """
        import_extra("pandas", "pandas")
        known = self._list_columns()
        if unknown := [name for name in columns if name not in known]:
            raise WhenceError(
                f"There is no column '{unknown[0]}'. The columns are {', '.join(known)}."
            )
        batches = list(self.folder.read_batches(list(columns), 65536))
        arrow = import_arrow()
        if not batches:
            return arrow.table({name: [] for name in columns}).to_pandas()
        return arrow.Table.from_batches(batches).to_pandas()

    def _list_columns(self) -> list[str]:
        from whence.distributed.rows import make_schema

        return list(make_schema(self.folder.description.form).names)


def open_result(address: str | Path, model: str | None = None) -> StoredResult:
    """Open the folder of a run over many inputs, which `whence explain --format parquet` wrote.

    Args:
        address: The folder: a path, or an address such as ``s3://bucket/results``.
        model: Where the model is now, if not where it was; for `StoredResult.restore`.

    Raises:
        WhenceError: It holds no result, or pyarrow is not installed.
    """
    return StoredResult(ResultFolder(address), model)
