"""Whole runs: stopping and resuming, and requests that cannot work."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.benchmark.runs import list_files, read_table, run_again
from whence import WhenceError, benchmark, datasets
from whence.cli.app import app


@pytest.mark.usefixtures("quick")
def test_two_runs_agree(whole, vit, photos, tmp_path):
    other = run_again(vit, photos, tmp_path / "other")
    assert read_table(other.folder) == read_table(whole.folder)
    assert (other.folder / "table.md").read_text() == (whole.folder / "table.md").read_text()


@pytest.mark.usefixtures("quick")
def test_a_finished_run_computes_nothing(whole, vit, photos, monkeypatch):
    before = read_table(whole.folder)
    monkeypatch.setattr("whence.benchmark.protocols.PerturbationProtocol.compute_rows", None)
    assert read_table(run_again(vit, photos, whole.folder).folder) == before


_CHILD = """
import sys, time
import tests.conftest
from whence import benchmark, models
from whence.benchmark.store import ResultStore
added = ResultStore.add
def slowly(self, method, rows):
    added(self, method, rows)
    time.sleep(0.3)
ResultStore.add = slowly
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
    while len(list_files(out)) < 3 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    _, said = child.communicate()
    assert child.returncode == -signal.SIGKILL, said.decode()
    done = list_files(out)
    assert 3 <= len(done) < 10
    assert json.loads((out / "run.json").read_text())["state"] == "running"
    kept = {file: file.stat().st_mtime_ns for file in done}
    run_again(vit, photos, out)
    assert read_table(out) == read_table(whole.folder)
    assert (out / "table.md").read_text() == (whole.folder / "table.md").read_text()
    assert {file: file.stat().st_mtime_ns for file in done} == kept


@pytest.mark.usefixtures("quick")
def test_further_methods_and_other_batches_may_go_on(copied, vit, photos, monkeypatch):
    computed = []
    real = benchmark.PROTOCOLS["perturbation"].compute_rows

    def watched(self, loaded, samples, method):
        computed.append((method.label, len(samples)))
        return real(self, loaded, samples, method)

    monkeypatch.setattr("whence.benchmark.protocols.PerturbationProtocol.compute_rows", watched)
    more = run_again(vit, photos, copied, methods="tiba,rollout:start_layer=1,random", batch=5)
    assert computed == [("rollout:start_layer=1", 5), ("rollout:start_layer=1", 4)]
    assert more.table.methods == ["tiba", "rollout:start_layer=1", "random"]
    fewer = run_again(vit, photos, copied, methods="random")
    assert fewer.table.methods == ["random"]
    assert len(json.loads((copied / "run.json").read_text())["methods_before"]) == 2
    assert len(list_files(copied)) == 12


@pytest.mark.usefixtures("quick")
def test_limits_are_drawn_by_the_seed(vit, photos, tmp_path):
    from whence.benchmark.runner import draw_names

    names = datasets.load(photos).list_names()
    four = draw_names(names, 4, seed=0)
    assert four == draw_names(names, 4, seed=0) == draw_names(list(names), 4, seed=0)
    assert four == [name for name in names if name in four]
    assert len({tuple(draw_names(names, 4, seed)) for seed in range(8)}) > 1
    assert draw_names(names, 99, seed=0) == names
    outcome = run_again(vit, photos, tmp_path / "some", limit=4)
    assert outcome.results["tiba"]["sample"].tolist() == four


def test_several_are_for_another_function(vit, photos):
    for given in (("saco,trust", vit, photos), ("saco", [vit], photos), ("saco", vit, [photos])):
        with pytest.raises(WhenceError, match="run_suite"):
            benchmark.run(*given)


def test_kinds_must_fit(vit, bert, photos, reviews, tmp_path):
    with pytest.raises(WhenceError, match="deleting words of a text is measured by"):
        benchmark.run("perturbation", bert, reviews, out=tmp_path)
    with pytest.raises(WhenceError, match="explains images, and the dataset holds texts"):
        benchmark.run("rationale", vit, reviews, out=tmp_path)
    with pytest.raises(WhenceError, match="neither a mask nor boxes"):
        benchmark.run("segmentation", vit, photos, out=tmp_path)


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
        facts = outcome.table.to_dict()[method]
        found = [facts[name]["value"] for name in ("pixel accuracy", "mIoU", "mAP")]
        assert found == pytest.approx(expected, abs=0.05)


@pytest.mark.usefixtures("quick")
def test_all_earlier_methods_are_remembered(copied, vit, photos):
    for methods in ("rollout", "raw_attention"):
        run_again(vit, photos, copied, methods=methods)
    facts = json.loads((copied / "run.json").read_text())
    assert [m["label"] for m in facts["methods_before"]] == ["tiba", "random", "rollout"]


@pytest.mark.parametrize("meant", ["zebra", "7", "²"])
def test_classes_that_the_model_does_not_know(vit, photos, tmp_path, meant):
    with pytest.raises(WhenceError, match=f"'cat' is '{meant}', which is no class of"):
        run_again(vit, photos, tmp_path / "out", classes=f"cat={meant}")
    assert not (tmp_path / "out").exists()


def test_interrupted_in_the_command_line(monkeypatch, tmp_path):
    def stop(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("whence.benchmark.runner.run", stop)
    asked = ["benchmark", "perturbation", "--data", str(tmp_path), "--methods", "tiba"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 130
    assert result.output == "Stopped. Finished samples are kept; the same command continues.\n"
