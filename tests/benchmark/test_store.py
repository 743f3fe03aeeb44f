"""The folder of a run: settings, damaged files, full disks."""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.benchmark import sets
from tests.benchmark.runs import list_files, read_table, run_again
from whence import WhenceError
from whence.benchmark.store import ResultStore


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "'seed' was 0 and is 4 now"),
        ({"limit": 5}, "'limit' was not set and is 5 now"),
        ({"fill": "blur"}, '\'fill\' was "zero" and is "blur" now'),
        ({"rules": "paper"}, '\'rules\' was "stable" and is "paper" now'),
    ],
)
@pytest.mark.usefixtures("quick")
def test_another_setting_is_refused(copied, vit, photos, changes, message):
    before = {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()}
    with pytest.raises(WhenceError, match=re.escape(message)):
        run_again(vit, photos, copied, **changes)
    assert {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
@pytest.mark.usefixtures("quick")
def test_a_damaged_file_is_set_aside(whole, copied, vit, photos, damage):
    file = list_files(copied)[1]
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[40] ^= 0xFF
    file.write_bytes(
        {"cut": content[: len(content) // 2], "flipped": content, "empty": b""}[damage]
    )
    others = {f: f.stat().st_mtime_ns for f in list_files(copied) if f != file}
    outcome = run_again(vit, photos, copied)
    assert outcome.set_aside == [str(file.relative_to(copied))]
    assert file.with_name(f"{file.name}.broken").read_bytes() == bytes(
        {"cut": content[: len(content) // 2], "flipped": content, "empty": b""}[damage]
    )
    assert {f: f.stat().st_mtime_ns for f in others} == others
    assert read_table(copied) == read_table(whole.folder)


@pytest.mark.usefixtures("quick")
def test_a_full_disk(whole, vit, photos, tmp_path, monkeypatch):
    out, real = tmp_path / "full", Path.write_bytes
    written = []

    def write(self, content):
        if self.parent.parent.name == "parts":
            written.append(self)
            if len(written) > 4:
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, content)

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(WhenceError, match=r"No space left on device.*kept"):
        run_again(vit, photos, out)
    assert len(list_files(out)) == 4
    monkeypatch.undo()
    run_again(vit, photos, out)
    assert read_table(out) == read_table(whole.folder)


def test_a_folder_that_cannot_be(vit, photos, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WhenceError, match="is a file, not a folder"):
        run_again(vit, photos, tmp_path / "file")
    with pytest.raises(WhenceError, match="cannot be made"):
        run_again(vit, photos, tmp_path / "file" / "below")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_text("{}")
    with pytest.raises(WhenceError, match="damaged or not that of a run"):
        run_again(vit, photos, tmp_path / "odd")


def test_what_a_killed_run_was_writing_is_cleared(copied):
    settings = json.loads((copied / "run.json").read_text())["settings"]
    left = list_files(copied)[0].with_name(".half.parquet.123")
    left.write_bytes(b"half")
    ResultStore(copied, settings)
    assert left.exists()
    os.utime(left, (0, 0))
    ResultStore(copied, settings)
    assert not left.exists()


@pytest.mark.parametrize(
    "edited",
    [
        {"methods": None},
        {"methods": ["tiba"]},
        {"versions": "new"},
        {"versions_before": 5},
        {"settings": []},
    ],
)
def test_a_run_json_that_was_edited(copied, vit, photos, edited):
    facts = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(facts | edited))
    with pytest.raises(WhenceError, match="damaged or not that of a run"):
        run_again(vit, photos, copied)


def test_files_that_are_not_of_a_run_are_not_overwritten(vit, photos, tmp_path):
    (tmp_path / "table.csv").write_text("my own")
    with pytest.raises(WhenceError, match=r"holds a table\.csv that is not of a run"):
        run_again(vit, photos, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.usefixtures("quick")
def test_a_run_without_results_holds_to_no_settings(vit, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "set")
    for name in sets.CLASSES:
        home = tmp_path / "set" / "val" / name
        home.rename(home.with_name(f"{name}-photos"))
    with pytest.raises(WhenceError, match="--classes"):
        run_again(vit, tmp_path / "set", tmp_path / "out")
    named = {f"{name}-photos": name for name in sets.CLASSES}
    outcome = run_again(vit, tmp_path / "set", tmp_path / "out", classes=named)
    assert not outcome.skipped


def test_long_names_of_folders_keep_their_beginning():
    from whence.benchmark.store import to_folder_name

    assert to_folder_name("saco:groups=4", "my pets", "vit") == "saco-groups=4-my-pets-vit"
    options = "perturbation:unit=pixels+patches,fill=zero+mean+blur+dataset+road,score=accuracy"
    long, other = (to_folder_name(f"{options}{end}", "pets") for end in ("", "+logit"))
    assert long.startswith("perturbation-unit=pixels-patches-fill=zero-")
    assert long.endswith("-pets")
    assert long != other
    assert len(long) <= 65
