"""Columns of pickled objects are refused, also where Ray would unpickle them."""

import pickle
from pathlib import Path

import pytest

from whence._util.pickles import has_pickles
from whence.distributed.sources import open_source
from whence.errors import WhenceError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("ray.data")  # from here on, Arrow knows Ray's type of pickled objects

NAME = {b"ARROW:extension:name": b"ray.data.arrow_pickled_object", b"ARROW:extension:metadata": b""}


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def table(tmp_path):
    field = pa.field("image", pa.large_binary(), metadata=NAME)
    columns = [pa.array(["a"]), pa.array(["good"]), pa.array([pickle.dumps(Trap(tmp_path / "x"))])]
    columns[2] = columns[2].cast(pa.large_binary())
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), field])
    pq.write_table(pa.table(columns, schema=schema), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def test_the_trap_works(table):
    assert pq.read_table(table).column("image").to_pylist()
    assert (table.parent / "x").exists()


def test_pickles_are_not_opened(table):
    from whence.distributed.ray_readers import make_reader

    with pytest.raises(WhenceError, match=r"no column 'image'|holds pickled Python objects"):
        list(open_source([str(table)], column="image").iterate_items())
    source = open_source([str(table)])
    assert [item.read() for item in source.iterate_items()] == ["good"]  # the others are left
    facts = {**source.facts, "columns": ["image"], "kind": "image"}
    other = type("Other", (), {"facts": facts, "kind": "image"})
    with pytest.raises(WhenceError, match="'image' holds pickled Python objects"):
        make_reader(other)(pq.read_table(table))
    assert not (table.parent / "x").exists()


def test_pickles_are_found_at_any_depth(table):
    kind = pq.read_schema(table).field("image").type
    deep = [pa.list_(kind), pa.struct([("bytes", kind)]), pa.map_(pa.string(), kind)]
    assert all(map(has_pickles, [kind, *deep, pa.list_(deep[1])]))
    assert not any(map(has_pickles, [pa.binary(), pa.list_(pa.int64(), 2), pa.struct([])]))
