"""A benchmark whose rows actors of Ray compute."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.benchmark.runs import list_files, run_again
from tests.distributed.results import explain_many
from whence import WhenceError, benchmark, datasets
from whence._util.fingerprint import hash_weights
from whence.benchmark.columns import to_columns
from whence.benchmark.ray_rows import ComputerSettings, RowActor
from whence.benchmark.sources import RunSources
from whence.distributed.ray_cluster import RayOptions

pyarrow = pytest.importorskip("pyarrow")
TWO = RayOptions(actors=2)


@pytest.fixture(autouse=True)
def _without_pages(monkeypatch):
    monkeypatch.setattr("whence.benchmark.report.render_page", lambda *_: "")
    monkeypatch.setattr("whence.benchmark.charts.draw_chart", lambda *_: None)


@pytest.fixture
def partly_broken(photos, tmp_path):
    data = shutil.copytree(photos, tmp_path / "set")
    (data / "val" / "dog" / "dog1.png").write_bytes(b"no photo")
    return data


def assert_same_rows(found, wanted):
    assert list(found) == list(wanted)
    for method, columns in wanted.items():
        assert set(found[method]) == set(columns)
        for name, values in columns.items():
            if values.dtype == object:
                assert found[method][name].tolist() == values.tolist()
            else:
                assert np.allclose(found[method][name], values, atol=1e-6, equal_nan=True), name


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_actors_compute_the_missing_rows_of_a_local_run(image_model, partly_broken, tmp_path):
    local = run_again(image_model, partly_broken, tmp_path / "local")
    out = shutil.copytree(tmp_path / "local", tmp_path / "out")
    for file in list_files(out)[2:]:
        file.unlink()  # as if it had been stopped
    kept = {file: file.stat().st_mtime_ns for file in list_files(out)}
    spread = run_again(image_model, partly_broken, out, ray=TWO)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert list_files(out) == [out / f.relative_to(local.folder) for f in list_files(local.folder)]
    assert_same_rows(spread.results, local.results)
    assert spread.skipped == local.skipped
    assert len(spread.skipped) == 1
    assert json.loads((out / "run.json").read_text())["state"] == "finished"


def run_actor(settings, tasks):
    """What an actor gives for tasks, in this process."""
    table = pyarrow.table({"task": [json.dumps(task) for task in tasks]})
    return [json.loads(one["line"][0].as_py()) for one in RowActor(settings)(table)]


@pytest.fixture
def settings(vit, image_model, photos, monkeypatch):
    monkeypatch.chdir(photos)  # the actor changes its folder
    sources = RunSources("photos", model=str(image_model))
    fingerprint = datasets.load(photos).compute_fingerprint()
    methods = benchmark.parse_methods("tiba,random:seed=4")
    protocol = benchmark.build_protocol("perturbation", {})
    known = (protocol, methods, sources, hash_weights(vit.model), fingerprint)
    return ComputerSettings(*known, photos.parent)


def test_random_scores_do_not_depend_on_the_place_of_a_sample(settings, photos):
    names, random = datasets.load(photos).list_names()[:4], "random:seed=4"
    (together,) = run_actor(settings, [{random: names}])
    alone = run_actor(settings, [{random: [name]} for name in reversed(names)])
    single = [row for one in alone for row in one["rows"]]
    assert [row["sample"] for row in single] == names[::-1]
    wanted = to_columns(together["rows"])
    assert_same_rows({"": to_columns(single[::-1])}, {"": wanted})
    assert np.ptp(wanted["positive_predicted_probability_auc"]) > 0.01


def test_an_actor_refuses_other_weights_and_other_samples(settings):
    (line,) = run_actor(replace(settings, model_hash="0"), [{"tiba": ["a"]}])
    assert "has other weights on the machine" in line["fatal"]
    (line,) = run_actor(replace(settings, data_hash="0"), [{"tiba": ["a"]}])
    assert "holds other samples on the machine" in line["fatal"]
    (line,) = run_actor(replace(settings, version="0.1.0"), [{"tiba": ["a"]}])
    assert "the run was started by 0.1.0" in line["fatal"]
    (line,) = run_actor(replace(settings, sources=RunSources("gone")), [{"tiba": ["a"]}])
    assert "'gone' is not there" in line["fatal"]


def test_a_loaded_model_cannot_be_sent(vit, photos, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(WhenceError, match="give its name or folder"):
        run_again(vit, photos, tmp_path / "out", ray=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_texts_and_noise_are_judged_alike(text_model, reviews, tmp_path):
    for protocol, options in (("rationale", {}), ("trust", {"draws": 2, "cascade": 1})):
        local, spread = (
            benchmark.run(
                protocol,
                text_model,
                reviews,
                "tiba,smoothgrad:samples=3,random",
                batch=2,
                out=tmp_path / f"{protocol}-{ray}",
                ray=ray,
                **options,
            )
            for ray in (False, TWO)
        )
        assert_same_rows(spread.results, local.results)
        assert spread.skipped == local.skipped


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_method_that_never_works_ends_the_run(image_model, photos, tmp_path):
    with pytest.raises(WhenceError, match="layer") as local:
        run_again(image_model, photos, tmp_path / "out", methods="rollout:start_layer=7")
    with pytest.raises(WhenceError) as spread:
        run_again(image_model, photos, tmp_path / "o", methods="rollout:start_layer=7", ray=TWO)
    assert str(spread.value) == str(local.value)
    assert not list_files(tmp_path / "o")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_stored_scores_are_judged_alike(image_model, partly_broken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    explain_many(["set"], "stored", model=image_model)
    local, spread = (
        benchmark.run("perturbation", None, "stored", "random", batch=2, out=out, ray=ray)
        for out, ray in (("local", False), ("spread", TWO))
    )
    assert list(spread.results) == ["tiba (stored)", "random"]
    assert_same_rows(spread.results, local.results)
    assert spread.skipped == local.skipped
    assert len(spread.skipped) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_several_runs_with_ray_are_those_without(image_model, masked, tmp_path):
    given = ("saco:groups=3,segmentation", str(image_model), str(masked), "tiba,random")
    local = benchmark.run_suite(*given, batch=2, out=tmp_path / "local")
    spread = benchmark.run_suite(*given, batch=2, out=tmp_path / "out", ray=TWO)
    assert list(spread.runs) == list(local.runs)
    for name, found in spread.runs.items():
        assert_same_rows(found.results, local.runs[name].results)
    assert spread.overview.overview.names == local.overview.overview.names
    assert spread.overview.sentences == local.overview.sentences
