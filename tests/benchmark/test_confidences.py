"""How surely a model classifies photos, and what of it is kept."""

import json

import pytest
import torch

from tests.saved import make_photo
from whence import WhenceError, datasets
from whence.benchmark import confidences
from whence.benchmark.confidences import measure_confidences
from whence.benchmark.labels import LabelMapping


def test_confidences_are_the_models_own(vit, partly_broken):
    dataset = datasets.load(partly_broken)
    names = dataset.list_names()
    found = measure_confidences(vit, dataset, names, LabelMapping())
    assert list(found) == [name for name in names if name != "dog/dog1.png"]
    for name, one in found.items():
        with torch.no_grad():
            logits = vit.model(vit.prepare([dataset.read(name).content]).inputs).logits[0]
        assert one.predicted == int(logits.argmax())
        assert one.probability == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)
        assert one.label == {"cat": 0, "dog": 1, "crane": 2}[name.split("/")[0]]
        assert one.is_wrong == (one.label != one.predicted)


def test_what_is_known_is_not_computed_again(vit, photos, tmp_path, monkeypatch):
    dataset = datasets.load(photos)
    names = dataset.list_names()
    first = measure_confidences(vit, dataset, names[:5], LabelMapping(), tmp_path)
    read = []
    monkeypatch.setattr(
        confidences,
        "prepare_photo",
        lambda *given, prepare=confidences.prepare_photo: (
            read.append(given[1].name) or prepare(*given)
        ),
    )
    both = measure_confidences(vit, dataset, names, LabelMapping(), tmp_path)
    assert sorted(read) == sorted(names[5:])
    assert {name: both[name] for name in names[:5]} == first
    assert measure_confidences(vit, dataset, names, LabelMapping(), tmp_path) == both
    assert len(read) == 4
    file = tmp_path / "confidences.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "key": "another model"}))
    measure_confidences(vit, dataset, names, LabelMapping(), tmp_path)
    assert len(read) == 4 + 9, "what another model said is not used"
    file.write_text("no JSON")
    measure_confidences(vit, dataset, names, LabelMapping(), tmp_path)
    assert len(read) == 4 + 18


def test_photos_of_which_none_can_be_used(vit, tmp_path):
    make_photo(8, 8).save(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("image,label\na,zebra\n")
    dataset = datasets.load(tmp_path)
    with pytest.raises(WhenceError, match=r"label of 'a\.png' is not a class"):
        measure_confidences(vit, dataset, dataset.list_names(), LabelMapping())
