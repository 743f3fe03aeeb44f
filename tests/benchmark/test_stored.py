"""Stored scores of a run over many inputs, judged as a method."""

import json
import pickle
import shutil

import numpy as np
import pytest
import torch

from tests.distributed.results import explain_many
from tests.saved import make_photo
from whence import WhenceError, benchmark
from whence.benchmark import build_protocol
from whence.benchmark.sources import RunSources
from whence.benchmark.stored import ResultDataset, choose_methods
from whence.distributed.lookup import RowLookup
from whence.distributed.restoring import load_model_again

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def folder(photos, image_model, tmp_path_factory):
    """A result of nine photos and one that is broken."""
    home = tmp_path_factory.mktemp("stored")
    data = shutil.copytree(photos, home / "set")
    (data / "val" / "zebra.png").write_bytes(b"no photo")
    return explain_many([data], home / "stored", model=image_model)


def judge(folder, out, methods=None, **options):
    return benchmark.run("perturbation", None, folder.address, methods, out=out, **options)


def test_stored_scores_get_the_figures_of_the_method_itself(folder, tmp_path):
    found = judge(folder, tmp_path / "out", "tiba,random", batch=10)
    assert list(found.results) == ["tiba (stored)", "tiba", "random"]
    assert list(found.skipped) == ["val/zebra.png"]
    stored, again = found.results["tiba (stored)"], found.results["tiba"]
    assert stored["sample"].tolist() == again["sample"].tolist()
    for column in ("predicted", "positive_predicted_probability", "difference_predicted_auc"):
        # Scores were computed in other batches, so that single pixels may change places.
        assert np.allclose(stored[column].astype(float), again[column].astype(float), atol=0.02)
    chance = found.results["random"]["positive_predicted_probability"]
    assert not np.allclose(stored["positive_predicted_probability"], chance, atol=0.02)


def test_nothing_is_explained_again(folder, tmp_path, monkeypatch):
    def explain(*_, **__):
        raise AssertionError("it was explained again")

    monkeypatch.setattr("whence.explainer.Explainer.explain", explain)
    found = judge(folder, tmp_path / "out", limit=3, seed=2)
    assert list(found.results) == ["tiba (stored)"]
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["settings"]["dataset"] == "results-stored"


def test_scores_are_those_of_the_row_with_the_name(folder):
    dataset = RunSources(folder.address).load_dataset()
    assert isinstance(dataset, ResultDataset)
    assert dataset.list_names() == sorted(row["id"] for row in folder.read_rows(["id"]))
    lookup = pickle.loads(pickle.dumps(RowLookup(folder)))  # as another process gets it
    rows = {row["id"]: row for row in folder.read_rows() if not row["error"]}
    names = list(rows)[::-1]
    assert lookup.find_rows(names) == [rows[name] for name in names]
    assert lookup.find_row("val/zebra.png")["error"].startswith("The photo")
    with pytest.raises(WhenceError, match="no row with the id 'other'"):
        lookup.find_row("other")


def test_a_photo_that_the_model_sees_otherwise_is_refused(folder, tmp_path):
    dataset = ResultDataset(folder)
    loaded = load_model_again(folder)
    row = next(row for row in folder.read_rows() if not row["error"])
    pixels = loaded.prepare([dataset.read(row["id"]).content]).inputs
    (method,) = choose_methods(None, "stable", dataset, build_protocol("perturbation", {}))
    explanation = method.restore(loaded, pixels, [row["id"]])
    assert explanation.scores.tolist() == [pytest.approx(row["scores"])]
    assert explanation.target.tolist() == [row["target"]]
    other = (row["target"] + 1) % 3
    with torch.no_grad():
        loaded.model.classifier.bias[other] = 100.0
    name = loaded.class_names[other]
    with pytest.raises(WhenceError, match=f"explained for '{row['name']}'.*predicts '{name}' now"):
        method.restore(loaded, pixels, [row["id"]])
    with pytest.raises(WhenceError, match="other weights than the one that made"):
        benchmark.run("perturbation", loaded, folder.address, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ("trust", "does not judge stored scores.*name methods with --methods"),
        ("segmentation", "does not judge stored scores"),
        ("rationale", "compares scores with words"),
    ],
)
def test_other_protocols_say_what_they_need(folder, tmp_path, protocol, sentence):
    with pytest.raises(WhenceError, match=sentence):
        benchmark.run(protocol, None, folder.address, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_scores_of_chosen_classes_are_refused(photos, image_model, tmp_path):
    chosen = explain_many([photos], tmp_path / "chosen", model=image_model, targets=("dog",))
    with pytest.raises(WhenceError, match="was made with --target"):
        judge(chosen, tmp_path / "out")
    top = explain_many([photos], tmp_path / "top", model=image_model, top=2)
    assert not judge(top, tmp_path / "out").skipped  # the first of them is the predicted one


def test_photos_of_a_table_are_found_again(image_model, tmp_path, monkeypatch):
    photos = []
    for seed in range(4):
        make_photo(seed=seed).save(tmp_path / "photo.png")
        photos.append((tmp_path / "photo.png").read_bytes())
    table = pyarrow.table({"id": ["a", "b", "c", "d"], "image": photos})
    parquet.write_table(table, tmp_path / "table.parquet")
    stored = explain_many([tmp_path / "table.parquet"], tmp_path / "stored", model=image_model)
    found = judge(stored, tmp_path / "out", limit=3)
    assert len(found.results["tiba (stored)"]["sample"]) == 3
    parquet.write_table(table.slice(0, 3), tmp_path / "table.parquet")
    with pytest.raises(WhenceError, match="have no splits"):
        judge(stored, tmp_path / "split", split="test")
    gone = judge(stored, tmp_path / "gone")
    assert gone.skipped == {"d": "'d' is not in the table any more."}
    monkeypatch.setattr("whence.benchmark.stored._MAX_HELD", 2)
    with pytest.raises(WhenceError, match="at most 2 are held in memory; give --limit"):
        judge(stored, tmp_path / "many")
