"""Read the inputs of a run by the readers of Ray Data, and leave out those that have a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from whence._util.extras import import_extra
from whence._util.pickles import refuse_pickles
from whence.distributed.addresses import Location
from whence.distributed.contents import Item, make_items, to_ids
from whence.distributed.folder import INPUTS, ResultFolder
from whence.distributed.parts import CHECKPOINT
from whence.distributed.sources import InputSource
from whence.distributed.tables import make_csv_options
from whence.errors import WhenceError

# Tasks that read and write ask for no CPU, so that they never wait for one that an actor holds;
# how many of them run at once is limited instead.
NO_CPU = 0


def read_dataset(source: InputSource, folder: ResultFolder, concurrency: int) -> Any:
    """Open the inputs as a dataset of Ray Data: the list of files, or the rows of a table.

    Args:
        source: The inputs.
        folder: Of the results, which holds the list of files.
        concurrency: How many files are read at once.
    """
    data: Any = import_extra("ray.data", "ray[data]", "ray")
    facts = source.facts
    if facts["format"] == "files":
        place, paths = folder.place, [folder.place.join(INPUTS)]
    else:
        place = Location(facts["paths"][0])
        paths = [Location(address).root for address in facts["paths"]]
    limits = {"num_cpus": NO_CPU, "concurrency": concurrency}
    known = {"filesystem": place.files, "file_extensions": None, **limits}
    if facts["format"] == "files":
        return data.read_parquet(paths, **known)
    if facts["format"] == "parquet":
        columns = list(dict.fromkeys([facts["id"], *facts["columns"]]))
        return data.read_parquet(paths, columns=columns, partitioning=None, **known)
    if facts["format"] == "jsonl":
        return data.read_json(paths, **known)
    if facts["format"] == "csv":
        return data.read_csv(paths, partitioning=None, **make_csv_options(facts["paths"]), **known)
    if facts["format"] == "webdataset":
        return data.read_webdataset(paths, decoder=None, expand_json=False, **known)
    if facts["format"] == "lance":
        (address,) = facts["paths"]
        return data.read_lance(address, columns=[facts["id"], *facts["columns"]], **limits)
    raise WhenceError(f"Ray does not read {facts['format']}; leave out --ray.")


def make_reader(source: InputSource) -> Callable[[Any], Sequence[Item]]:
    """Make the function that workers call for the inputs of a block of the dataset."""
    facts = source.facts
    if facts["format"] == "files":
        return partial(make_items, id_column="id", columns=["path"], kind=source.kind)
    return partial(
        _make_items,
        id_column=facts["id"],
        columns=facts["columns"],
        kind=source.kind,
        folder=facts["folder"],
    )


def _make_items(block: Any, id_column: str, columns: Sequence[str], **how: Any) -> list[Item]:
    """Make the inputs of a block; files of a table may differ in what a column holds."""
    refuse_pickles(block.schema, [id_column, *columns])
    return make_items(block, id_column, columns, **how)


def make_checkpoints(source: InputSource, folder: ResultFolder) -> Any:
    """Make the configuration by which Ray Data notes finished rows, and leaves them out.

    Raises:
        WhenceError: The release of Ray cannot go on with such a table.
    """
    checkpoint: Any = import_extra("ray.data.checkpoint", "ray[data]", "ray")
    facts = source.facts
    arguments: dict[str, Any] = {}
    if facts["format"] != "files":
        accepted = inspect.signature(checkpoint.CheckpointConfig).parameters
        if "checkpoint_filter_cls" in accepted:
            arguments["checkpoint_filter_cls"] = _make_filter(facts["id"])
        elif folder.list_parts():
            raise WhenceError(
                "To go on with a table, Ray 2.60 or later is needed: pip install --upgrade ray."
            )
    return checkpoint.CheckpointConfig(
        id_column="id",
        checkpoint_path=folder.place.join(CHECKPOINT),
        override_filesystem=folder.place.files,
        delete_checkpoint_on_success=False,
        **arguments,
    )


def _make_filter(column: str) -> type:
    """Make Ray's filter of finished rows look up the ids of a table's own column."""
    from ray.data.checkpoint import NumpyArrayBasedCheckpointFilter

    class IdFilter(NumpyArrayBasedCheckpointFilter):  # type: ignore[misc]
        """Leaves out rows whose id, as a text, is among those of finished rows."""

        def filter_rows_for_block(self, block: Any) -> Any:
            """Return the rows that are not finished."""
            import pyarrow as pa
            from ray.data.block import BlockAccessor

            block = BlockAccessor.for_block(block).to_arrow()  # Ray reads archives as pandas
            refuse_pickles(block.schema, [column])
            ids = to_ids(block.column(column), column)
            places = pa.table({"id": pa.array(ids, pa.string()), "place": range(len(ids))})
            return block.take(super().filter_rows_for_block(places).column("place"))

    return IdFilter
