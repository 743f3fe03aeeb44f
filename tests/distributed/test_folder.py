"""Folders of results: parts are whole or not there, whatever ended the run."""

import json
import math
from pathlib import Path

import pytest

from whence.distributed import ResultFolder, RunDescription
from whence.distributed.addresses import Location
from whence.distributed.rows import RowForm, make_error_row, make_table
from whence.errors import WhenceError

pq = pytest.importorskip("pyarrow.parquet")

FORM = RowForm(units=4)


def describe(**depends_on) -> RunDescription:
    found = {"method": "tiba", "model weights": "a" * 64, **depends_on}
    return RunDescription(json.dumps(found), found, "image", FORM)


def make_part(*ids: str):
    return make_table([make_error_row(name, "It is damaged.", FORM, "f") for name in ids], FORM)


@pytest.fixture
def folder(tmp_path) -> ResultFolder:
    result = ResultFolder(tmp_path / "out")
    result.start(describe(), {"source": ["photos"]})
    result.write_part(make_part("a", "b"))
    result.write_part(make_part("c"))
    return result


def list_ids(result: ResultFolder) -> list[str]:
    return sorted(row["id"] for row in result.read_rows(["id"]))


def checkpoints(result: ResultFolder) -> Path:
    return Path(result.address) / "_whence" / "checkpoint"


def test_parts_and_the_ids_that_are_done(folder):
    again = ResultFolder(folder.address)
    assert list_ids(again) == ["a", "b", "c"]
    assert again.count_rows() == 3
    assert again.read_done().find_known(["a", "x", "c"]) == [True, False, True]
    assert again.run["source"] == ["photos"]
    assert again.description == describe()


def test_the_folder_is_a_table_for_others(folder):
    pd = pytest.importorskip("pandas")
    table = pd.read_parquet(folder.address)
    assert sorted(table["id"]) == ["a", "b", "c"]
    assert set(table["error"]) == {"It is damaged."}


@pytest.mark.parametrize(("targets", "units"), [(1, 4), (2, 3), (2, None)])
def test_no_list_is_null_in_the_row_of_an_error(targets, units):
    """Parquet has no nulls of fixed size that all releases of pyarrow read."""
    form = RowForm(targets=targets, units=units)
    table = make_table([make_error_row("a", "It is damaged.", form, "f")], form)
    lists = [field.name for field in table.schema if hasattr(field.type, "value_type")]
    assert "scores" in lists
    assert [name for name in lists if table[name].null_count] == []
    assert table["scores"].to_pylist()[0] == pytest.approx(
        [math.nan] * (form.width or 0), nan_ok=True
    )


@pytest.mark.parametrize("part", ["none", "torn", "whole"])
def test_a_pending_part_is_deleted(folder, part):
    content = (Path(folder.address) / folder.list_parts()[0]).read_bytes()
    base = "20260101T000000-00000000-000000"
    pq.write_table(make_part("d").select(["id"]), checkpoints(folder) / f"{base}.pending.parquet")
    if part != "none":
        end = len(content) // 2 if part == "torn" else None
        (Path(folder.address) / f"{base}.parquet").write_bytes(content[:end])
    again = ResultFolder(folder.address)
    assert list_ids(again) == ["a", "b", "c"]  # also before it is cleaned
    again.start(describe(), {})
    assert not list(Path(folder.address).rglob(f"{base}*"))
    assert list_ids(again) == ["a", "b", "c"]
    assert again.read_done().find_known(["d"]) == [False]


@pytest.mark.parametrize("step", ["ids", "rows", "renaming"])
def test_a_part_counts_only_when_all_of_it_is_written(folder, monkeypatch, step):
    left = ["ids", "rows", "renaming"]
    left = left[: left.index(step)]
    write = pq.write_table

    def cut(rows, file):
        if not left:
            file.write(b"PAR1")
            raise KeyboardInterrupt
        left.pop()
        write(rows, file)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", cut)
    monkeypatch.setattr(Location, "move", stop)
    with pytest.raises(KeyboardInterrupt):
        folder.write_part(make_part("d"))
    monkeypatch.undo()
    again = ResultFolder(folder.address)
    again.start(describe(), {})
    assert list_ids(again) == ["a", "b", "c"]
    assert again.read_done().find_known(["c", "d"]) == [True, False]


def test_parts_and_checkpoints_without_the_other_are_deleted(folder):
    first, second = folder.list_parts()
    (Path(folder.address) / first).unlink()
    (checkpoints(folder) / second).unlink()
    again = ResultFolder(folder.address)
    again.start(describe(), {})
    assert again.list_parts() == []
    assert not list(Path(folder.address).glob("*.parquet"))  # others would read it
    assert len(again.read_done()) == 0
    assert not list(checkpoints(folder).iterdir())


def test_a_part_with_both_checkpoints_is_deleted(folder):
    first, second = folder.list_parts()
    pending = first.replace(".parquet", ".pending.parquet")
    (checkpoints(folder) / pending).write_bytes((checkpoints(folder) / first).read_bytes())
    again = ResultFolder(folder.address)
    again.clean()
    assert again.list_parts() == [second]
    assert again.read_done().find_known(["a", "c"]) == [False, True]


def test_parts_of_ray_have_its_names(folder):
    base = f"x_{'0' * 32}_000001"
    pq.write_table(make_part("d"), Path(folder.address) / f"{base}-0.parquet")
    pq.write_table(make_part("d").select(["id"]), checkpoints(folder) / f"{base}.parquet")
    assert folder.clean() == []
    assert list_ids(folder) == ["a", "b", "c", "d"]


def test_other_settings_are_refused_by_name(folder):
    with pytest.raises(WhenceError, match='method was "tiba" and is "rollout" now; model weights'):
        folder.start(describe(method="rollout", **{"model weights": "b" * 64}), {})
    with pytest.raises(WhenceError, match="model weights differ"):
        folder.start(describe(**{"model weights": "b" * 64}), {})
    assert list_ids(folder) == ["a", "b", "c"]


def test_starting_anew_deletes_only_what_whence_wrote(folder):
    (Path(folder.address) / "mine.parquet").write_bytes(b"mine")
    (checkpoints(folder) / folder.list_parts()[0]).unlink()  # a part that a killed run left
    folder.delete()
    files = [one.name for one in Path(folder.address).rglob("*") if one.is_file()]
    assert files == ["mine.parquet"]
    with pytest.raises(WhenceError, match=r"holds files that are not of a run, such as 'mine"):
        ResultFolder(folder.address).check_free()


def test_two_runs_at_once_are_refused(folder):
    other = ResultFolder(folder.address)
    with (
        folder.lock(),
        pytest.raises(WhenceError, match="Another run is writing"),
        other.lock(),
    ):
        pass
    with other.lock():
        assert other.list_parts()


def test_damage_is_a_sentence(folder, tmp_path):
    part = Path(folder.address) / folder.list_parts()[0]
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(WhenceError, match=r"is damaged or may not be read\. Delete it and give"):
        list_ids(folder)
    (Path(folder.address) / "_whence" / "run.json").write_text("{")
    with pytest.raises(WhenceError, match=r"run\.json' is damaged"):
        ResultFolder(folder.address)
    (tmp_path / "file").write_text("x")
    with pytest.raises(WhenceError, match="is a file, not a folder"):
        ResultFolder(tmp_path / "file")
    with pytest.raises(WhenceError, match="holds no results"):
        _ = ResultFolder(tmp_path / "nothing").description


def test_a_full_disk_is_a_sentence_and_keeps_earlier_parts(folder, monkeypatch):
    def fill(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", fill)
    with pytest.raises(WhenceError, match="cannot be written to: No space left on device"):
        folder.write_part(make_part("d"))
    monkeypatch.undo()
    again = ResultFolder(folder.address)
    again.start(describe(), {})
    assert list_ids(again) == ["a", "b", "c"]
