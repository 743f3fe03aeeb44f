"""Several protocols, models and datasets in one request."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmark.suites import METHODS, PROTOCOLS, run_again
from whence import WhenceError, benchmark
from whence.benchmark.plan import build_protocols
from whence.benchmark.protocols.base import BenchmarkProtocol
from whence.benchmark.store import ResultStore


def read_files(folder: Path) -> dict[str, bytes]:
    """All files of a folder, but the Parquet files, whose batches may differ."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix != ".parquet"
    }


def test_each_protocol_runs_where_it_fits(suite, image_model):
    models = [image_model.name, "other"]
    expected = {
        f"{protocol} · {data} · {model}"
        for model in models
        for protocol, data in (
            ("saco:groups=4", "masks-masked"),
            ("saco:groups=4", "imagenet"),
            ("segmentation", "masks-masked"),
        )
    }
    assert set(suite.runs) == expected
    assert set(suite.unfit) == {f"segmentation · imagenet · {model}" for model in models}
    assert all("neither a mask nor boxes" in reason for reason in suite.unfit.values())
    assert suite.failed == suite.left_out == {}
    folders = {path.name for path in suite.folder.iterdir() if path.is_dir()}
    assert f"saco-groups=4-imagenet-{image_model.name}" in folders
    assert len(folders) == 6


def test_each_run_is_the_same_as_alone(suite, other_vit, masked, tmp_path):
    alone = benchmark.run(
        "segmentation", other_vit, masked, METHODS, batch=2, limit=3, out=tmp_path / "a"
    )
    inside = suite.folder / "segmentation-masks-masked-other"
    for name in ("table.csv", "table.md", "overview.csv", "ranks.csv"):
        assert (alone.folder / name).read_bytes() == (inside / name).read_bytes()


@pytest.mark.usefixtures("quick")
def test_stopped_anywhere_and_resumed(suite, vit, other_vit, masked, photos, tmp_path, monkeypatch):
    """After 1, 5 and 9 more parts, and then to the end."""
    out, added, left = tmp_path / "stopped", ResultStore.add, [0]

    def add(self, method, rows):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        added(self, method, rows)

    monkeypatch.setattr(ResultStore, "add", add)
    stops = 0
    given = (vit, other_vit, masked, photos, out)
    for parts in (1, 5, 9):
        left[0] = parts
        with pytest.raises(KeyboardInterrupt):
            run_again(*given)
        stops += 1
        assert not (out / "overview.csv").exists()
    left[0] = -1
    run_again(*given)
    assert stops == 3
    assert read_files(out) == read_files(suite.folder)


@pytest.mark.usefixtures("quick")
def test_further_models_protocols_and_methods_extend_the_overview(
    suite, vit, other_vit, masked, photos, tmp_path
):
    out = tmp_path / "grown"
    given = (vit, other_vit, masked, photos, out)
    first = run_again(*given, protocols="segmentation", models=other_vit, data=masked)
    assert len(first.overview.overview.criteria) == 2
    run_again(*given, protocols="saco:groups=4", models=other_vit, methods="tiba,random")
    left = run_again(*given, protocols="saco:groups=4", models=vit)
    overview = left.overview.overview
    assert len(overview.criteria) == 2 + 2 + 2
    assert list(overview.left_out) == ["rollout"]
    last = run_again(*given)
    assert last.overview.overview.left_out == {}
    csv = (out / "overview.csv").read_text()
    assert csv == (suite.folder / "overview.csv").read_text()


@pytest.mark.usefixtures("quick")
def test_a_single_run_becomes_part_of_several(vit, image_model, masked, tmp_path):
    out = tmp_path / "one"
    benchmark.run("segmentation", vit, masked, METHODS, batch=4, out=out)
    both = benchmark.run_suite(PROTOCOLS, vit, masked, METHODS, batch=4, out=out)
    assert [path.name for path in out.iterdir() if (path / "run.json").exists()] == [
        f"saco-groups=4-masks-masked-{image_model.name}"
    ]
    assert len(both.overview.overview.runs) == 2


@pytest.mark.usefixtures("quick")
def test_a_method_that_fails_is_left_out_of_its_run(
    vit, other_vit, masked, photos, tmp_path, monkeypatch
):
    kind = benchmark.PROTOCOLS["segmentation"]
    real = kind.compute_rows

    def compute_rows(self, loaded, samples, method):
        if method.label == "rollout" and Path(loaded.name).name == "other":
            raise ValueError("no")
        return real(self, loaded, samples, method)

    monkeypatch.setattr(kind, "compute_rows", compute_rows)
    given = (vit, other_vit, masked, photos, tmp_path / "out")
    outcome = run_again(*given, protocols="segmentation", data=masked)
    name = "segmentation · masks-masked · other"
    reason = "Method 'rollout' failed: ValueError: no."
    assert outcome.left_out == {name: {"rollout": reason}}
    assert list(outcome.runs[name].results) == ["tiba", "random"]
    assert list(outcome.overview.overview.left_out) == ["rollout"]
    alone = run_again(*given[:-1], tmp_path / "a", protocols="segmentation", methods="rollout")
    assert alone.failed[name] == reason
    assert len(alone.runs) == 1


@pytest.mark.usefixtures("quick")
def test_photos_and_texts_in_one_request(vit, bert, masked, reviews, tmp_path):
    outcome = benchmark.run_suite(
        "segmentation,rationale",
        [vit, bert],
        [masked, reviews],
        ["tiba", "random", "vit_cx"],
        out=tmp_path / "out",
    )
    assert len(outcome.runs) == 2
    assert len(outcome.unfit) == 6
    (left_out,) = outcome.left_out.values()
    assert left_out == {"vit_cx": "It does not explain texts."}
    assert list(outcome.overview.overview.left_out) == ["vit_cx"]


def test_requests_that_cannot_work(vit, other_vit, image_model, masked, photos, tmp_path):
    out = tmp_path / "out"
    twin = shutil.copytree(image_model, tmp_path / image_model.name)
    given = (vit, other_vit, masked, photos, out)
    for changes, message in (
        ({"protocols": "rationale,saco"}, "The rationale benchmark fits nothing here: The"),
        ({"protocols": "segmentation", "data": photos}, "fits nothing here: .*neither a mask"),
        ({"protocols": "saco,saco"}, "'saco' is named twice"),
        ({"protocols": "saco,saco:groups=10"}, "'saco' is named twice"),
        ({"models": [vit, twin]}, "Two models have one name"),
        ({"data": None}, "needs a dataset"),
        ({"weights": "file"}, "--weights is for a single model"),
        ({"threshold": "median"}, "'threshold' is 'mean' or 'otsu', not 'median'"),
        ({"radius": 0.1}, "None of the benchmarks saco, segmentation has an option 'radius'"),
        ({"methods": "tibba"}, "Did you mean 'tiba'"),
        ({"limit": 0}, "numbers from 1"),
        ({"ranking": "best"}, "'nemenyi' or 'wilcoxon'"),
        ({"models": "nowhere"}, "nowhere"),
    ):
        with pytest.raises(WhenceError, match=message):
            run_again(*given, **changes)
    assert not out.exists()
    (file := tmp_path / "file").touch()
    with pytest.raises(WhenceError, match="is a file, not a folder"):
        run_again(*given[:-1], file)
    twice = benchmark.run_suite("segmentation", [vit] * 2, [masked] * 2, "tiba", out=out)
    assert len(twice.runs) == 1


def test_options_are_for_the_protocols_that_have_them():
    from whence.benchmark import parse_protocols

    built = build_protocols(parse_protocols("saco:groups=4,trust,saco"), {"groups": 6, "draws": 2})
    assert [one.label for one in built] == ["saco:groups=4", "trust:draws=2", "saco:groups=6"]
    assert all(isinstance(one, BenchmarkProtocol) for one in built)


_CHILD = """
import sys, time
import tests.conftest
from whence import benchmark
from whence.benchmark.store import ResultStore
added = ResultStore.add
def slowly(self, method, rows):
    added(self, method, rows)
    time.sleep(0.3)
ResultStore.add = slowly
*models, masked, photos, out = sys.argv[1:]
benchmark.run_suite("saco:groups=4,segmentation", models, [masked, photos], "tiba,random,rollout",
                    batch=2, limit=3, out=out, device="cpu")
"""


@pytest.mark.slow
def test_killed_in_the_second_model(image_model, other_model, masked, photos, tmp_path):
    """All files are the same, pages and pictures too."""
    out = tmp_path / "killed"
    given = (image_model, other_model, masked, photos)
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, *map(str, (*given, out))],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", *sys.path])},
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 240
    while child.poll() is None and time.monotonic() < deadline:
        if list(out.glob("saco*-other/parts/*/*.parquet")):
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    _, said = child.communicate()
    assert child.returncode == -signal.SIGKILL, said.decode()
    states = {json.loads(file.read_text())["state"] for file in out.glob("*/run.json")}
    assert states == {"running", "finished"}
    run_again(*given, out)
    run_again(*given, tmp_path / "whole")
    resumed, whole = read_files(out), read_files(tmp_path / "whole")
    assert resumed.keys() == whole.keys()
    assert [name for name in whole if resumed[name] != whole[name]] == []
    assert {"overview.html", "ranks.png", "agreement.png"} <= whole.keys()
