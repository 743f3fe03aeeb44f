"""Inputs of runs: files and rows of tables, with ids that do not depend on where they are."""

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.inputs import write_photos
from whence.distributed import ResultFolder
from whence.distributed.addresses import split_options
from whence.distributed.contents import make_items, read_content
from whence.distributed.file_source import FileSource
from whence.distributed.folder import INPUTS
from whence.distributed.sources import open_recorded_source, open_source
from whence.errors import WhenceError
from whence.inputs.images import read_image

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs") / "photos"
    write_photos(folder, 4)
    (folder / "a b").mkdir()
    write_photos(folder / "a b" / "ü", 2)
    (folder / ".hidden.png").write_bytes(b"x")
    return folder


def list_ids(*arguments, **options) -> list[str]:
    source = open_source([str(one) for one in arguments], **options)
    return [item.id for item in source.iterate_items()]


def read(item) -> np.ndarray:
    return np.asarray(item.read())


def test_ids_of_files_are_relative_to_what_was_named(photos, monkeypatch):
    top = ["0000-jpeg.jpg", "0001-png.png", "0002-grey.png", "0003-palette.png"]
    below = ["a b/ü/0000-jpeg.jpg", "a b/ü/0001-png.png"]
    assert sorted(list_ids(photos)) == sorted(top + below)
    assert list_ids(photos / "*.png") == top[1:]
    assert list_ids(*sorted(photos.glob("0*.png"))) == top[1:]
    assert sorted(list_ids(photos / "**" / "*.png")) == sorted([*top[1:], below[1]])
    assert list_ids(photos / top[0]) == top[:1]
    assert sorted(list_ids(photos, photos / top[0])) == sorted(top + below)  # each once
    assert list_ids(photos / top[0], photos / "a b") == [top[0], *below]
    assert sorted(list_ids(photos.as_uri())) == sorted(top + below)
    assert sorted(list_ids(f"{photos.as_uri()}/**/*.jpg")) == sorted([top[0], below[0]])
    monkeypatch.chdir(photos)
    assert sorted(list_ids(".")) == sorted(top + below)


def test_files_are_read_by_path_and_by_address(photos):
    for place in (str(photos), photos.as_uri()):
        for item in open_source([place]).iterate_items():
            expected = np.asarray(read_image(photos / item.id))
            np.testing.assert_array_equal(read(item), expected)


def test_keys_in_addresses_are_refused():
    with pytest.raises(WhenceError, match=r"a key in it would be written to run\.json"):
        list_ids("s3://key:secret@bucket/photos")


def test_a_link_that_leads_back_is_followed_once(photos, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "photos").symlink_to(photos)
    (tmp_path / "in" / "back").symlink_to(tmp_path / "in")
    assert len(list_ids(tmp_path / "in")) == 6


def test_a_folder_that_may_not_be_read_is_refused(photos, monkeypatch):
    scan = os.scandir

    def forbid(folder):
        if str(folder).endswith("ü"):
            raise PermissionError(13, "Permission denied")
        return scan(folder)

    monkeypatch.setattr(os, "scandir", forbid)
    with pytest.raises(WhenceError, match="ü' cannot be read: Permission denied"):
        list_ids(photos)


def test_the_list_of_files_opens_them_again(photos, tmp_path):
    source = open_source([str(photos)])
    folder = ResultFolder(tmp_path)
    (tmp_path / "_whence").mkdir()
    source.write_list(folder.place, INPUTS)
    table = pq.read_table(tmp_path / INPUTS)
    assert table.column_names == ["id", "path"]
    assert all(Path(path).is_file() for path in table["path"].to_pylist())
    items = make_items(table, "id", ["path"], "image")
    assert [item.id for item in items] == list_ids(photos)
    np.testing.assert_array_equal(read(items[2]), np.asarray(read_image(photos / items[2].id)))


def contents(photos) -> list[bytes]:
    return [(photos / name).read_bytes() for name in sorted(os.listdir(photos)) if name[0] == "0"]


def write_table(photos, path: Path) -> Path:
    """Write the four photos as a table of any format, with the ids k0, …"""
    files = contents(photos)
    ids = [f"k{number}" for number in range(4)]
    if path.suffix in (".parquet", ".lance"):
        images = [{"bytes": content, "path": None} for content in files]
        table = pa.table({"id": ids, "label": [1] * 4, "image": images})
        if path.suffix == ".lance":
            pytest.importorskip("lance").write_dataset(table, path)
        else:
            pq.write_table(table, path)
    elif path.suffix == ".jsonl":
        names = sorted(name for name in os.listdir(photos) if name[0] == "0")
        rows = [
            {"id": name, "path": str(photos / file)} for name, file in zip(ids, names, strict=True)
        ]
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    else:
        with tarfile.open(path, "w") as archive:
            for number, content in enumerate(files):
                add_file(archive, f"k{number}.cls", b"1")
                add_file(archive, f"k{number}.{'png' if number else 'jpg'}", content)
    return path


def add_file(archive, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl", "t.tar", "t.lance"])
def test_photos_of_tables(photos, tmp_path, name):
    path = write_table(photos, tmp_path / name)
    for place in (str(path), path.as_uri(), str(tmp_path)):
        source = open_source([place])
        assert source.kind == "image"
        items = list(source.iterate_items())
        assert [item.id for item in items] == ["k0", "k1", "k2", "k3"]
        for item, content in zip(items, contents(photos), strict=True):
            expected = np.asarray(read_content(content, "image"))
            np.testing.assert_array_equal(read(item), expected)
        ids = source.read_ids()
        assert ids is None or ids.count_distinct() == 4


def test_tables_are_opened_again_by_what_the_run_tells(photos, tmp_path):
    source = open_source([str(write_table(photos, tmp_path / "t.tar"))])
    folder = ResultFolder(tmp_path / "out")
    folder.run = {"source": json.loads(json.dumps(source.facts))}
    again = open_recorded_source(folder)
    assert again == source
    (found,) = again.find_items(["k2", "nothing"])
    np.testing.assert_array_equal(read(found), read(list(source.iterate_items())[2]))
    folder.run = {}
    with pytest.raises(WhenceError, match="does not tell where its inputs are"):
        open_recorded_source(folder)


def test_blocks_of_a_table_are_read_as_its_file_is(photos, tmp_path):
    source = open_source([str(write_table(photos, tmp_path / "t.parquet"))])
    table = pq.read_table(tmp_path / "t.parquet")
    facts = source.facts
    items = make_items(table, facts["id"], facts["columns"], facts["kind"], facts["folder"])
    for one, other in zip(items, source.iterate_items(), strict=True):
        assert one.id == other.id
        np.testing.assert_array_equal(read(one), read(other))


def test_texts_of_tables(tmp_path):
    rows = {"number": [7, 8], "title": ["x", "y"], "text": ["a good film", "awful"]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    source = open_source([str(tmp_path / "t.parquet")], id_column="number")
    assert source.kind == "text"
    assert [(item.id, item.read()) for item in source.iterate_items()] == [
        ("7", "a good film"),
        ("8", "awful"),
    ]
    rows = [("007", "good,\nvery good"), ("7", "bad")]
    for name, separator in (("t.csv", ","), ("t.tsv", "\t")):
        lines = [f'{number}{separator}"{text}"' for number, text in rows]
        (tmp_path / name).write_text("\n".join([f"id{separator}review", *lines]))
        source = open_source([str(tmp_path / name)])
        assert [(item.id, item.read()) for item in source.iterate_items()] == rows


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        ({"key": ["a"], "text": ["good"]}, {}, "no column 'id'. Say with --id .* are key, text"),
        ({"id": ["a"], "text": ["good"]}, {"id_column": "ix"}, "no column 'ix'"),
        ({"id": ["a"], "text": ["good"]}, {"column": "txt"}, "no column 'txt'.* 'text'"),
        ({"id": ["a"], "x": [1.5]}, {}, "No column seems to hold photos or texts"),
        ({"id": ["a"], "x": ["a b"], "y": ["c d"]}, {}, "Several columns may hold texts: x, y"),
        ({"id": ["a"], "text": ["good"]}, {"kind": "image"}, "No column seems to hold photos"),
        ({"id": [None, "a"], "text": ["good", "bad"]}, {}, "one holds nothing"),
        ({"id": [1.5], "text": ["good"]}, {}, "one holds float"),
        ({"id": [], "text": []}, {}, "has no rows"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, columns, options, match):
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(WhenceError, match=match):
        list_ids(tmp_path / "t.parquet", **options)


def test_a_first_row_without_a_text_is_no_hindrance(tmp_path):
    rows = [{"id": "a", "review": None, "extra": "x"}, {"id": "b", "review": "a good film"}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    items = list(open_source([str(tmp_path / "t.jsonl")]).iterate_items())
    assert [item.id for item in items] == ["a", "b"]
    assert items[1].read() == "a good film"
    with pytest.raises(WhenceError, match="The text is missing"):
        items[0].read()


def test_options_of_addresses_are_told_from_globs():
    options = "?region=x&scheme=http"
    assert split_options(f"s3://bucket/a?.jpg{options}") == ("s3://bucket/a?.jpg", options)
    assert split_options("s3://bucket/a?.jpg") == ("s3://bucket/a?.jpg", "")
    assert split_options("a?b=c.jpg") == ("a?b=c.jpg", "")


def test_damaged_tables_are_refused(photos, tmp_path):
    for name in ("t.parquet", "t.jsonl", "t.tar"):
        path = write_table(photos, tmp_path / name)
        path.write_bytes(
            path.read_bytes()[:100] if name != "t.jsonl" else b'{"id": 1, "path": ""}\n{x'
        )
        with pytest.raises(WhenceError, match=r"cannot be read as|Line 2 of"):
            list_ids(path, column="path" if name == "t.jsonl" else None)
    with pytest.raises(WhenceError, match="holds tables of several formats"):
        list_ids(tmp_path)
    with pytest.raises(WhenceError, match="of several kinds: files, jsonl"):
        list_ids(tmp_path / "t.jsonl", photos)


def test_values_that_hold_nothing_to_explain(tmp_path):
    for value, kind, match in (
        (None, "image", "The photo is missing"),
        ({"bytes": None, "path": None}, "image", "The photo is missing"),
        ("nothing.jpg", "image", "The file is not there"),
        (b"nothing", "image", "not an image"),
        (3, "text", "cannot be read from int"),
        (b"\xff", "text", "not text in UTF-8"),
        ([[1, 2], [3]], "image", "different lengths"),
    ):
        with pytest.raises(WhenceError, match=match) as error:
            read_content(value, kind, str(tmp_path))
        assert str(tmp_path) not in str(error.value)


def test_names_that_are_not_utf8_are_inputs_that_fail(tmp_path):
    name = b"\xff.png"
    try:
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_bytes(b"x")
    except OSError:
        pytest.skip("the file system takes UTF-8 only")
    source = open_source([str(tmp_path)])
    assert isinstance(source, FileSource)
    (item,) = source.iterate_items()
    assert item.id == "\\xff.png"
    with pytest.raises(WhenceError, match="is not there"):
        item.read()
