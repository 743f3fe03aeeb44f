"""Samples that cannot be read or explained, and methods that fail."""

import json
import os
import shutil

import pyarrow.parquet as parquet
import pytest
import torch

from tests.benchmark.runs import list_files, read_table, run_again
from whence import WhenceError
from whence.models import forward


@pytest.mark.usefixtures("quick")
def test_a_broken_photo_is_skipped(vit, partly_broken, tmp_path):
    out = tmp_path / "out"
    outcome = run_again(vit, partly_broken, out)
    (name,) = outcome.skipped
    assert name.endswith("dog1.png")
    facts = json.loads((out / "run.json").read_text())["summary"]
    assert facts["used"] == 8
    assert [one["sample"] for one in facts["skipped"]] == [name]
    assert "dog1.png" in facts["skipped"][0]["error"]
    assert any("1 sample(s) were skipped" in note and "dog1.png" in note for note in facts["notes"])
    assert "dog1.png" in (out / "table.md").read_text()
    # and the others are not touched by it
    clean = tmp_path / "clean"
    shutil.copytree(partly_broken, clean)
    (clean / "val" / "dog" / "dog1.png").unlink()
    alone = run_again(vit, clean, tmp_path / "alone")
    tiba = "tiba"
    for metric, cell in alone.table.to_dict()[tiba].items():
        value = outcome.table.to_dict()[tiba][metric]["value"]
        assert value == pytest.approx(cell["value"], abs=0.01), metric


def test_nothing_usable(vit, partly_broken, tmp_path):
    for file in partly_broken.rglob("*.png"):
        file.write_bytes(b"no photo")
    with pytest.raises(WhenceError, match="is not an image"):
        run_again(vit, partly_broken, tmp_path / "out")


@pytest.mark.usefixtures("quick")
def test_labels_that_are_no_classes(vit, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "set")
    (tmp_path / "set" / "val" / "cat").rename(tmp_path / "set" / "val" / "zebra")
    outcome = run_again(vit, tmp_path / "set", tmp_path / "out", batch=9)
    assert len(outcome.skipped) == 3
    assert "--classes" in next(iter(outcome.skipped.values()))
    mapped = run_again(
        vit, tmp_path / "set", tmp_path / "mapped", batch=9, classes={"zebra": "cat"}
    )
    assert not mapped.skipped


def test_a_method_that_fails_says_so(vit, photos, tmp_path, monkeypatch):
    def failing(self, loaded, samples, method):
        raise RuntimeError("something odd\nmore")

    monkeypatch.setattr("whence.benchmark.protocols.PerturbationProtocol.compute_rows", failing)
    with pytest.raises(WhenceError, match="'tiba' failed: RuntimeError: something odd"):
        run_again(vit, photos, tmp_path / "out")


@pytest.mark.usefixtures("quick")
def test_a_batch_of_unknown_labels_is_skipped_after_a_stop_too(vit, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "set")
    (tmp_path / "set" / "val" / "dog").rename(tmp_path / "set" / "val" / "zebra")
    unstopped = run_again(vit, tmp_path / "set", tmp_path / "out", batch=3)
    assert len(unstopped.skipped) == 3
    before = read_table(tmp_path / "out")
    for file in list_files(tmp_path / "out"):
        if "zebra" in str(parquet.read_table(file).column("sample")[0]):
            file.unlink()  # as if the run had been stopped before
    stopped = run_again(vit, tmp_path / "set", tmp_path / "out", batch=3)
    assert stopped.skipped == unstopped.skipped
    assert read_table(tmp_path / "out") == before


def test_names_that_no_text_can_hold(vit, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "set")
    home = tmp_path / "set" / "val" / "dog"
    odd = ("new\nline.png", os.fsdecode(b"\xffodd.png"), os.fsdecode(b"\xfebroken.png"))
    try:
        for name in odd:
            shutil.copy(home / "dog1.png", home / name)
    except OSError:
        pytest.skip("this disk has no such names")
    (home / odd[0]).write_bytes(b"no photo")
    (home / odd[2]).write_bytes(b"no photo")
    outcome = run_again(vit, tmp_path / "set", tmp_path / "out")
    assert [name.rpartition("/")[2] for name in outcome.skipped] == [odd[0], "\\xfebroken.png"]
    assert any("odd.png" in name for name in outcome.results["tiba"]["sample"])
    facts = json.loads((tmp_path / "out" / "run.json").read_text())["summary"]["skipped"]
    assert [one["sample"] for one in facts] == list(outcome.skipped)
    before = read_table(tmp_path / "out")
    for line in (tmp_path / "out" / "table.tex").read_text().splitlines():
        assert not line.startswith("line.png")
    list_files(tmp_path / "out")[0].unlink()
    run_again(vit, tmp_path / "set", tmp_path / "out")
    assert read_table(tmp_path / "out") == before


@pytest.mark.usefixtures("quick")
def test_short_memory_is_no_fault_of_samples(vit, photos, tmp_path, monkeypatch):
    whole_logits, calls = forward.compute_logits, []

    def full(*arguments):
        calls.append(1)
        if len(calls) > 2:
            raise torch.OutOfMemoryError("full")
        return whole_logits(*arguments)

    monkeypatch.setattr("whence.faithfulness.photos.compute_logits", full)
    with pytest.raises(WhenceError, match="memory is too small"):
        run_again(vit, photos, tmp_path / "out", methods="random", batch=1)
    monkeypatch.undo()
    assert not run_again(vit, photos, tmp_path / "out", methods="random", batch=1).skipped
