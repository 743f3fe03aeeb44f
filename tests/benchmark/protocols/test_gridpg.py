"""Rows of the GridPG protocol against its definition, and whole runs of it."""

import copy
import dataclasses
import pickle
import shutil

import pytest
import torch
from torch.nn import functional as F

from tests.benchmark.helpers import choose_one, judge
from tests.benchmark.runs import list_files, read_table
from tests.metrics.test_localization import localize_plainly
from tests.saved import make_photo
from whence import WhenceError, benchmark, datasets
from whence.benchmark import build_protocol


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """Photos without labels."""
    folder = tmp_path_factory.mktemp("mosaics")
    for at in range(10):
        make_photo(40, 36, seed=at).save(folder / f"p{at}.png")
    return folder


@pytest.fixture(scope="module")
def trained(vit, flat):
    """A model that says cat, dog, crane, cat, … of the photos, with a confidence of 0.964."""
    dataset = datasets.load(flat)
    contents = [dataset.read(name).content for name in dataset.list_names()]
    model = copy.deepcopy(vit.model).float()
    wanted = 4 * F.one_hot(torch.arange(len(contents)) % 3, 3).double()
    with torch.no_grad():
        features = model.vit(vit.prepare(contents).inputs.float()).last_hidden_state[:, 0].double()
        solved = torch.linalg.lstsq(features, wanted, driver="gelsd").solution
        model.classifier.weight.copy_(solved.T)
        model.classifier.bias.zero_()
    return dataclasses.replace(vit, model=model)


def fit(loaded, path, **options):
    protocol, dataset = build_protocol("gridpg", options), datasets.load(path)
    protocol.start(dataset.list_names(), 0)
    protocol.fit(loaded, dataset, dataset.list_names(), None)
    return protocol, dataset


@pytest.mark.parametrize("size", ["1x2", "3x1"])
def test_the_share_in_the_cell_of_the_class(trained, flat, size):
    protocol, dataset = fit(trained, flat, size=size, confidence=0.9)
    samples = [dataset.read(name) for name in dataset.list_names()]
    method = choose_one("input_x_gradient")
    rows = protocol.compute_rows(
        trained, [protocol.prepare(trained, one) for one in samples], method
    )
    classes = {row["sample"]: row["predicted"] for row in rows}
    placed = [row for row in rows if "share" in row]
    assert len(placed) == {"1x2": 10, "3x1": 9}[size]
    rows_, columns = protocol.grid
    for row in placed:
        cell = protocol._placed[row["sample"]]
        assert len({classes[name] for name in cell.photos}) == protocol.cell_count
        assert cell.photos[cell.number] == row["sample"]
        mosaic = torch.empty(1, 3, 32, 32)
        mask = torch.zeros(32, 32)
        for number, name in enumerate(cell.photos):
            at, beside = divmod(number, columns)
            down = slice(at * 32 // rows_, (at + 1) * 32 // rows_)
            across = slice(beside * 32 // columns, (beside + 1) * 32 // columns)
            pixels = trained.prepare([dataset.read(name).content]).inputs
            area = mosaic[:, :, down, across].shape[-2:]
            mosaic[:, :, down, across] = F.interpolate(
                pixels, area, mode="bilinear", antialias=True
            )
            if number == cell.number:
                mask[down, across] = 1
        result = trained.explainer.explain(
            mosaic, target=classes[row["sample"]], method="input_x_gradient"
        )
        heat = result.heatmap()[0].double().tolist()
        assert row["share"] == pytest.approx(localize_plainly(heat, mask.tolist())[0], abs=1e-5)


def test_a_method_is_judged_by_where_it_locates_the_class(trained, flat):
    """By its reading for that, unless another one is asked for."""
    protocol, dataset = fit(trained, flat, size="1x2", confidence=0.9)
    samples = [dataset.read(name) for name in dataset.list_names()]
    found = [
        [row["share"] for row in judge(protocol, trained, samples, choose_one(text))]
        for text in ("whence", "whence:reading=location", "whence:reading=evidence")
    ]
    assert found[0] == found[1] != found[2]
    for text, reading in (("whence", "location"), ("whence:reading=evidence", "evidence")):
        _, shown = protocol.explain_example(trained, samples[0], choose_one(text))
        assert shown.settings["reading"] == reading


@pytest.mark.parametrize(("value", "share"), [(1.0, 0.5), (0.0, 0.0), (-1.0, 0.0)])
def test_maps_that_are_the_same_everywhere(trained, flat, monkeypatch, value, share):
    protocol, dataset = fit(trained, flat, size="1x2", confidence=0.9)
    monkeypatch.setattr(
        "whence.explanation.Explanation.heatmap",
        lambda result, size: torch.full((len(result), *size), value),
    )
    samples = [protocol.prepare(trained, dataset.read(name)) for name in dataset.list_names()]
    rows = protocol.compute_rows(trained, samples, choose_one("tiba"))
    assert [row["share"] for row in rows] == [share] * 10


def test_a_run_is_resumed_with_the_same_mosaics(trained, flat, quick, tmp_path):
    options = {"batch": 4, "size": "1x2", "confidence": 0.9}
    whole = benchmark.run(
        "gridpg", trained, flat, "tiba,rollout", out=tmp_path / "whole", **options
    )
    figures = whole.table.to_dict()
    assert figures["rollout"]["GridPG"]["value"] == pytest.approx(50), "the same for all classes"
    notes = " ".join(whole.table.notes)
    assert "10 of 10 photos are classified with a confidence of 0.9 or more; 10 of them" in notes
    assert "has no labels" in notes
    copied = tmp_path / "copied"
    shutil.copytree(whole.folder, copied)
    for file in list_files(copied)[::2]:
        file.unlink()
    benchmark.run("gridpg", trained, flat, "tiba,rollout", out=copied, **options)
    assert read_table(copied) == read_table(whole.folder)


def test_the_page_shows_mosaics(trained, flat):
    protocol, dataset = fit(trained, flat, size="1x2", confidence=0.9)
    name = next(iter(protocol._placed))
    shown, explanation = protocol.explain_example(trained, dataset.read(name), choose_one("tiba"))
    assert shown.size == (32, 32)
    assert explanation.target.tolist() == [protocol._confidences[name].predicted]


def test_other_processes_have_the_same_mosaics(trained, flat):
    protocol, dataset = fit(trained, flat, size="1x2", confidence=0.9)
    other = pickle.loads(pickle.dumps(protocol))
    for name in protocol._placed:
        sample = dataset.read(name)
        mine, others = (one.prepare(trained, sample) for one in (protocol, other))
        assert torch.equal(mine.pixels, others.pixels)
        assert mine.number == others.number


def test_labels_that_are_wrong_are_left_out(trained, flat, tmp_path):
    predicted = fit(trained, flat, size="1x2", confidence=0.9)[0]._confidences
    folder = tmp_path / "labelled"
    shutil.copytree(flat, folder)
    labels = {name: one.predicted for name, one in predicted.items()}
    wrong = next(iter(labels))
    labels[wrong] = (labels[wrong] + 1) % 3
    lines = ["image,label", *(f"{name},{label}" for name, label in labels.items())]
    (folder / "labels.csv").write_text("\n".join(lines))
    protocol, _ = fit(trained, folder, size="1x2", confidence=0.9)
    assert wrong not in protocol._placed
    assert protocol._confidences[wrong].is_wrong


def test_what_makes_no_mosaic_is_said(vit, trained, flat):
    with pytest.raises(
        WhenceError,
        match=r"0 of 10 photos .* there are 10, of 3 classes, with gridpg:confidence=0.95",
    ):
        fit(trained, flat, size="1x2", confidence=1.0)
    first = datasets.load(flat).read("p0.png")
    with pytest.raises(WhenceError, match=r"photos of 4 different classes, and '.*' has 3"):
        build_protocol("gridpg", {}).check(vit, "image", first)
    with pytest.raises(WhenceError, match="does not take mosaics of 64x32 pixels"):
        fit(trained, flat, size="1x2", confidence=0.9, cells="full")
    with pytest.raises(WhenceError, match="from 0 to 1, not 99"):
        build_protocol("gridpg", {"confidence": 99})
    with pytest.raises(WhenceError, match="`fit`, which has to be called first"):
        build_protocol("gridpg", {}).prepare(vit, first)
