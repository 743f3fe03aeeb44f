"""Whole runs: what they write, stopping and going on, and what can go wrong."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from tests.benchmark import sets
from whence import WhenceError, benchmark, datasets
from whence.benchmark.store import Store
from whence.cli.app import app

METHODS = "tiba,random"


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "parts").glob("*/*.parquet"))


def table(folder: Path) -> str:
    return (folder / "table.csv").read_text()


@pytest.fixture
def quick(monkeypatch):
    """Without what takes longest, in runs whose page nobody looks at."""
    monkeypatch.setattr("whence.benchmark.report.page", lambda *_: "")
    monkeypatch.setattr("whence.benchmark.curves.drawn", lambda *_: None)


@pytest.fixture(scope="module")
def whole(vit, photos, tmp_path_factory):
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return benchmark.run("perturbation", vit, photos, METHODS, batch=2, out=out)


def again(vit, photos, out, **changes):
    return benchmark.run(
        "perturbation", vit, photos, **{"methods": METHODS, "batch": 2, "out": out} | changes
    )


def test_what_a_run_writes(whole):
    names = {file.name for file in whole.folder.iterdir()}
    assert names == {
        *("run.json", "parts", "table.md", "table.csv", "table.tex", "curves.png", "report.html")
    }
    told = json.loads((whole.folder / "run.json").read_text())
    assert told["state"] == "finished"
    assert told["settings"]["seed"] == 0
    assert len(told["settings"]["model weights"]) == 64
    assert set(told["versions"]) == {"whence", "torch", "transformers", "python"}
    assert told["summary"]["used"] == 9
    assert told["summary"]["skipped"] == []
    assert told["results"] == whole.table.as_dict()
    assert len(parts(whole.folder)) == 2 * 5


def test_the_table_is_that_of_the_rows(whole):
    for method in ("tiba", "random"):
        rows = [
            row
            for file in parts(whole.folder)
            if parquet.read_schema(file).metadata[b"method"] == method.encode()
            for row in parquet.read_table(file).to_pylist()
        ]
        assert len(rows) == 9
        for order in ("positive", "negative"):
            for which in ("predicted", "target"):
                curves = [row[f"{order}_{which}_accuracy"] for row in rows]
                mean = [sum(values) / 9 for values in zip(*curves, strict=True)]
                auc = 100 * sum((mean[i] + mean[i + 1]) / 2 * 0.1 for i in range(9))
                cell = whole.table.as_dict()[method][f"{order}, {which}"]
                assert cell["value"] == pytest.approx(auc)


def test_the_page_needs_nothing_outside(whole):
    page = (whole.folder / "report.html").read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert not re.search(r"https?://", page)
    assert page.count("<figure>") == 6 * 3
    assert "Settings and versions" in page
    assert "transformers" in page


@pytest.mark.usefixtures("quick")
def test_two_runs_agree(whole, vit, photos, tmp_path):
    other = again(vit, photos, tmp_path / "other")
    assert table(other.folder) == table(whole.folder)
    assert (other.folder / "table.md").read_text() == (whole.folder / "table.md").read_text()


@pytest.mark.usefixtures("quick")
def test_a_finished_run_computes_nothing(whole, vit, photos, monkeypatch):
    before = table(whole.folder)
    monkeypatch.setattr("whence.benchmark.protocols.Perturbation.rows", None)
    assert table(again(vit, photos, whole.folder).folder) == before


_CHILD = """
import sys, time
import tests.conftest
from whence import benchmark, models
from whence.benchmark.store import Store
added = Store.add
def slowly(self, method, rows):
    added(self, method, rows)
    time.sleep(0.3)
Store.add = slowly
model, data, out = sys.argv[1:]
loaded = models.load(model, device="cpu")
benchmark.run("perturbation", loaded, data, "tiba,random", batch=2, out=out)
"""


@pytest.mark.usefixtures("quick")
def test_killed_and_started_again(whole, vit, image_model, photos, tmp_path):
    out = tmp_path / "killed"
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(image_model), str(photos), str(out)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", *sys.path])},
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while len(parts(out)) < 3 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    _, said = child.communicate()
    assert child.returncode == -signal.SIGKILL, said.decode()
    done = parts(out)
    assert 3 <= len(done) < 10
    assert json.loads((out / "run.json").read_text())["state"] == "running"
    kept = {file: file.stat().st_mtime_ns for file in done}
    again(vit, photos, out)
    assert table(out) == table(whole.folder)
    assert (out / "table.md").read_text() == (whole.folder / "table.md").read_text()
    assert {file: file.stat().st_mtime_ns for file in done} == kept


@pytest.fixture
def copied(whole, tmp_path):
    return Path(shutil.copytree(whole.folder, tmp_path / "copied"))


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
        again(vit, photos, copied, **changes)
    assert {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()} == before


@pytest.mark.usefixtures("quick")
def test_further_methods_and_other_batches_may_go_on(copied, vit, photos, monkeypatch):
    computed = []
    real = benchmark.PROTOCOLS["perturbation"].rows

    def watched(self, loaded, samples, method):
        computed.append((method.label, len(samples)))
        return real(self, loaded, samples, method)

    monkeypatch.setattr("whence.benchmark.protocols.Perturbation.rows", watched)
    more = again(vit, photos, copied, methods="tiba,rollout:start_layer=1,random", batch=5)
    assert computed == [("rollout:start_layer=1", 5), ("rollout:start_layer=1", 4)]
    assert more.table.methods == ["tiba", "rollout:start_layer=1", "random"]
    fewer = again(vit, photos, copied, methods="random")
    assert fewer.table.methods == ["random"]
    assert len(json.loads((copied / "run.json").read_text())["methods_before"]) == 2
    assert len(parts(copied)) == 12


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
@pytest.mark.usefixtures("quick")
def test_a_damaged_file_is_set_aside(whole, copied, vit, photos, damage):
    file = parts(copied)[1]
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[40] ^= 0xFF
    file.write_bytes(
        {"cut": content[: len(content) // 2], "flipped": content, "empty": b""}[damage]
    )
    others = {f: f.stat().st_mtime_ns for f in parts(copied) if f != file}
    outcome = again(vit, photos, copied)
    assert outcome.set_aside == [str(file.relative_to(copied))]
    assert file.with_name(f"{file.name}.broken").read_bytes() == bytes(
        {"cut": content[: len(content) // 2], "flipped": content, "empty": b""}[damage]
    )
    assert {f: f.stat().st_mtime_ns for f in others} == others
    assert table(copied) == table(whole.folder)


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
        again(vit, photos, out)
    assert len(parts(out)) == 4
    monkeypatch.undo()
    again(vit, photos, out)
    assert table(out) == table(whole.folder)


def test_a_folder_that_cannot_be(vit, photos, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WhenceError, match="is a file, not a folder"):
        again(vit, photos, tmp_path / "file")
    with pytest.raises(WhenceError, match="cannot be made"):
        again(vit, photos, tmp_path / "file" / "below")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_text("{}")
    with pytest.raises(WhenceError, match="damaged or not that of a run"):
        again(vit, photos, tmp_path / "odd")


@pytest.fixture
def partly_broken(tmp_path):
    folder = sets.photos(tmp_path / "set")
    (folder / "val" / "dog" / "dog1.png").write_bytes(b"no photo")
    return folder


@pytest.mark.usefixtures("quick")
def test_a_broken_photo_is_skipped(vit, partly_broken, tmp_path):
    out = tmp_path / "out"
    outcome = again(vit, partly_broken, out)
    (name,) = outcome.skipped
    assert name.endswith("dog1.png")
    told = json.loads((out / "run.json").read_text())["summary"]
    assert told["used"] == 8
    assert [one["sample"] for one in told["skipped"]] == [name]
    assert "dog1.png" in told["skipped"][0]["error"]
    assert any("1 sample(s) were skipped" in note and "dog1.png" in note for note in told["notes"])
    assert "dog1.png" in (out / "table.md").read_text()
    # and the others are not touched by it
    clean = tmp_path / "clean"
    shutil.copytree(partly_broken, clean)
    (clean / "val" / "dog" / "dog1.png").unlink()
    alone = again(vit, clean, tmp_path / "alone")
    tiba = "tiba"
    for metric, cell in alone.table.as_dict()[tiba].items():
        value = outcome.table.as_dict()[tiba][metric]["value"]
        assert value == pytest.approx(cell["value"], abs=0.01), metric


def test_nothing_usable(vit, partly_broken, tmp_path):
    for file in partly_broken.rglob("*.png"):
        file.write_bytes(b"no photo")
    with pytest.raises(WhenceError, match="is not an image"):
        again(vit, partly_broken, tmp_path / "out")


@pytest.mark.usefixtures("quick")
def test_labels_that_are_no_classes(vit, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "set")
    (tmp_path / "set" / "val" / "cat").rename(tmp_path / "set" / "val" / "zebra")
    outcome = again(vit, tmp_path / "set", tmp_path / "out", batch=9)
    assert len(outcome.skipped) == 3
    assert "--classes" in next(iter(outcome.skipped.values()))
    mapped = again(vit, tmp_path / "set", tmp_path / "mapped", batch=9, classes={"zebra": "cat"})
    assert not mapped.skipped


@pytest.mark.usefixtures("quick")
def test_limits_are_drawn_by_the_seed(vit, photos, tmp_path):
    from whence.benchmark.hashes import drawn

    names = datasets.load(photos).names()
    four = drawn(names, 4, seed=0)
    assert four == drawn(names, 4, seed=0) == drawn(list(names), 4, seed=0)
    assert four == [name for name in names if name in four]
    assert len({tuple(drawn(names, 4, seed)) for seed in range(8)}) > 1
    assert drawn(names, 99, seed=0) == names
    outcome = again(vit, photos, tmp_path / "some", limit=4)
    assert outcome.results["tiba"]["sample"].tolist() == four


def test_a_method_that_fails_says_so(vit, photos, tmp_path, monkeypatch):
    def failing(self, loaded, samples, method):
        raise RuntimeError("something odd\nmore")

    monkeypatch.setattr("whence.benchmark.protocols.Perturbation.rows", failing)
    with pytest.raises(WhenceError, match="'tiba' failed: RuntimeError: something odd"):
        again(vit, photos, tmp_path / "out")


def test_kinds_must_fit(vit, bert, photos, reviews, tmp_path):
    with pytest.raises(WhenceError, match="removing words of a text is measured by"):
        benchmark.run("perturbation", bert, reviews, out=tmp_path)
    with pytest.raises(WhenceError, match="explains images, and the dataset holds texts"):
        benchmark.run("rationale", vit, reviews, out=tmp_path)
    with pytest.raises(WhenceError, match="neither a mask nor boxes"):
        benchmark.run("segmentation", vit, photos, out=tmp_path)


def test_segmentation_and_rationale(vit, bert, masked, reviews, tmp_path):
    outcome = benchmark.run("segmentation", vit, masked, METHODS, batch=3, out=tmp_path / "s")
    names = [metric.name for metric in outcome.table.metrics]
    assert names == ["pixel accuracy", "mIoU", "mAP", "F1", "pointing game", "energy inside"]
    assert (tmp_path / "s" / "report.html").read_text().count("<figure>") == 4 * 3
    outcome = benchmark.run("rationale", bert, reviews, METHODS, out=tmp_path / "r")
    assert {"token-F1", "AUPRC", "sufficiency", "token-F1, k=80"} <= set(
        outcome.table.as_dict()["tiba"]
    )
    page = (tmp_path / "r" / "report.html").read_text()
    assert page.count("People marked: very") == 4
    assert any("longer than the model reads" in note for note in outcome.table.notes)


@pytest.mark.usefixtures("quick")
def test_other_versions_are_told(copied, vit, photos):
    told = json.loads((copied / "run.json").read_text())
    told["versions"]["torch"] = "1.0"
    (copied / "run.json").write_text(json.dumps(told))
    notes = again(vit, photos, copied).table.notes
    assert any("torch 1.0" in note for note in notes)
    assert any("torch 1.0" in note for note in again(vit, photos, copied).table.notes)


def test_what_a_killed_run_was_writing_is_cleared(copied):
    settings = json.loads((copied / "run.json").read_text())["settings"]
    left = parts(copied)[0].with_name(".half.parquet.123")
    left.write_bytes(b"half")
    Store(copied, settings)
    assert left.exists()
    os.utime(left, (0, 0))
    Store(copied, settings)
    assert not left.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_figures_that_were_measured_with_other_code(data, tmp_path):
    """ViT-Ti on 200 pets, whole photos: pixel accuracy, mIoU, mAP of an independent sketch."""
    measured = {"tiba": (86.04, 72.05, 85.37), "gae": (83.06, 68.18, 84.10)}
    outcome = benchmark.run(
        "segmentation",
        data / "vit_tiny_in1k_hf",
        data / "pets",
        list(measured),
        view="whole",
        out=tmp_path / "pets",
    )
    for method, expected in measured.items():
        told = outcome.table.as_dict()[method]
        found = [told[name]["value"] for name in ("pixel accuracy", "mIoU", "mAP")]
        assert found == pytest.approx(expected, abs=0.05)


@pytest.mark.usefixtures("quick")
def test_a_batch_of_unknown_labels_is_skipped_after_a_stop_too(vit, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "set")
    (tmp_path / "set" / "val" / "dog").rename(tmp_path / "set" / "val" / "zebra")
    unstopped = again(vit, tmp_path / "set", tmp_path / "out", batch=3)
    assert len(unstopped.skipped) == 3
    before = table(tmp_path / "out")
    for file in parts(tmp_path / "out"):
        if "zebra" in str(parquet.read_table(file).column("sample")[0]):
            file.unlink()  # as if the run had been stopped before
    stopped = again(vit, tmp_path / "set", tmp_path / "out", batch=3)
    assert stopped.skipped == unstopped.skipped
    assert table(tmp_path / "out") == before


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
    outcome = again(vit, tmp_path / "set", tmp_path / "out")
    assert [name.rpartition("/")[2] for name in outcome.skipped] == [odd[0], "\\xfebroken.png"]
    assert any("odd.png" in name for name in outcome.results["tiba"]["sample"])
    told = json.loads((tmp_path / "out" / "run.json").read_text())["summary"]["skipped"]
    assert [one["sample"] for one in told] == list(outcome.skipped)
    before = table(tmp_path / "out")
    for line in (tmp_path / "out" / "table.tex").read_text().splitlines():
        assert not line.startswith("line.png")
    parts(tmp_path / "out")[0].unlink()
    again(vit, tmp_path / "set", tmp_path / "out")
    assert table(tmp_path / "out") == before


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
    told = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(told | edited))
    with pytest.raises(WhenceError, match="damaged or not that of a run"):
        again(vit, photos, copied)


@pytest.mark.usefixtures("quick")
def test_all_earlier_methods_are_remembered(copied, vit, photos):
    for methods in ("rollout", "raw_attention"):
        again(vit, photos, copied, methods=methods)
    told = json.loads((copied / "run.json").read_text())
    assert [m["label"] for m in told["methods_before"]] == ["tiba", "random", "rollout"]


@pytest.mark.usefixtures("quick")
def test_a_run_without_results_holds_to_no_settings(vit, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "set")
    for name in sets.CLASSES:
        home = tmp_path / "set" / "val" / name
        home.rename(home.with_name(f"{name}-photos"))
    with pytest.raises(WhenceError, match="--classes"):
        again(vit, tmp_path / "set", tmp_path / "out")
    named = {f"{name}-photos": name for name in sets.CLASSES}
    outcome = again(vit, tmp_path / "set", tmp_path / "out", classes=named)
    assert not outcome.skipped


@pytest.mark.parametrize("meant", ["zebra", "7", "²"])
def test_classes_that_the_model_does_not_know(vit, photos, tmp_path, meant):
    with pytest.raises(WhenceError, match=f"'cat' is '{meant}', which is no class of"):
        again(vit, photos, tmp_path / "out", classes=f"cat={meant}")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("quick")
def test_trust_says_how_many_samples_saw_random_layers(vit, photos, tmp_path):
    outcome = benchmark.run("trust", vit, photos, "random", limit=2, draws=1, out=tmp_path / "t")
    assert any("on 2 sample(s)" in note for note in outcome.table.notes)


def test_files_that_are_not_of_a_run_are_not_overwritten(vit, photos, tmp_path):
    (tmp_path / "table.csv").write_text("my own")
    with pytest.raises(WhenceError, match=r"holds a table\.csv that is not of a run"):
        again(vit, photos, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.usefixtures("quick")
def test_short_memory_is_no_fault_of_samples(vit, photos, tmp_path, monkeypatch):
    import torch

    from whence.models import forward

    whole_logits, calls = forward.logits_of, []

    def full(*arguments):
        calls.append(1)
        if len(calls) > 2:
            raise torch.OutOfMemoryError("full")
        return whole_logits(*arguments)

    monkeypatch.setattr("whence.benchmark.protocols.perturbation.logits_of", full)
    with pytest.raises(WhenceError, match="memory is too small"):
        again(vit, photos, tmp_path / "out", methods="random", batch=1)
    monkeypatch.undo()
    assert not again(vit, photos, tmp_path / "out", methods="random", batch=1).skipped


def test_interrupted_in_the_command_line(monkeypatch, tmp_path):
    def stop(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("whence.benchmark.runner.run", stop)
    asked = ["benchmark", "perturbation", "--data", str(tmp_path), "--methods", "tiba"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 130
    assert result.output == "Stopped. What was done is kept; the same command goes on.\n"
