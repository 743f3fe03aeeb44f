"""Rows of the localization protocol against its definition, written plainly."""

import dataclasses

import numpy as np
import pytest

from tests.benchmark.helpers import choose_one, judge, read_samples
from tests.datasets.test_funnybirds import write_birds
from tests.datasets.test_imagenet_s import write_subset
from tests.metrics.test_localization import enclose_plainly, localize_plainly
from tests.saved import make_photo
from whence import WhenceError, benchmark, datasets
from whence.benchmark import build_protocol
from whence.benchmark.columns import to_columns
from whence.benchmark.photos import prepare_photo


def predict(loaded, sample):
    return int(loaded.explain(loaded.prepare([sample.content]), method="raw_attention").target)


def test_shares_of_photos_that_are_classified_correctly(vit, masked):
    protocol = build_protocol("localization", {})
    samples = []
    for at, sample in enumerate(read_samples(masked)):
        predicted = predict(vit, sample)
        label = [predicted, (predicted + 1) % 3, None, predicted][at]
        samples.append(dataclasses.replace(sample, label=label))
    samples[3] = dataclasses.replace(samples[3], mask=np.zeros((40, 48), dtype=np.uint8))
    rows = judge(protocol, vit, samples, choose_one("input_x_gradient"))
    for at in (0, 2):  # right, and without a label
        prepared = vit.prepare([samples[at].content])
        heat = vit.explain(prepared, method="input_x_gradient").heatmap()[0].double().tolist()
        mask = prepare_photo(vit, samples[at]).mask.tolist()
        share, weighted = localize_plainly(heat, mask)
        assert rows[at]["in_mask"] == pytest.approx(share, abs=1e-6)
        assert rows[at]["in_mask_weighted"] == pytest.approx(weighted, abs=1e-5)
        share, weighted = localize_plainly(heat, enclose_plainly(mask))
        assert rows[at]["in_box"] == pytest.approx(share, abs=1e-6)
        assert rows[at]["in_box_weighted"] == pytest.approx(weighted, abs=1e-5)
    assert [row["correct"] for row in rows] == [1, 0, None, 1]
    assert "in_mask" not in rows[1], "a photo that is classified wrongly has no figure"
    assert "in_mask" not in rows[3], "neither has one without an object"
    notes = " ".join(protocol.write_notes({"one": to_columns(rows)}))
    assert "2 of 3 labelled photos are classified correctly" in notes
    assert "the other 1 have no figure" in notes
    assert "1 photo(s) without a label" in notes
    assert "1 photo(s) have no object in view" in notes


def test_boxes_alone_have_energy_in_box_only(cropping_vit):
    sample = datasets.Sample("x", make_photo(40, 36), boxes=((0, 0, 40, 36),))
    (row,) = judge(build_protocol("localization", {}), cropping_vit, [sample], choose_one("tiba"))
    assert row["in_box"] == pytest.approx(1)
    assert row["in_box_weighted"] == pytest.approx(1)
    assert "in_mask" not in row


def test_a_run_without_labels_counts_all_and_says_so(vit, masked, quick, tmp_path):
    result = benchmark.run("localization", vit, masked, "tiba,random", out=tmp_path / "run")
    figures = result.table.to_dict()["tiba"]
    assert figures["localisation"]["samples"] == figures["energy in box"]["samples"] == 4
    assert 0 < figures["localisation"]["value"] <= figures["energy in box"]["value"] <= 100
    assert any("it is not known which photos are classified" in n for n in result.table.notes)


def test_photos_without_masks_are_refused(vit, photos, tmp_path):
    with pytest.raises(WhenceError, match=r"neither a mask nor boxes.*gridpg"):
        benchmark.run("localization", vit, photos, out=tmp_path / "run")


def write_all_classes(folder):
    """The same picture as a bird of each class, so that the model is right once."""
    return write_birds(folder, classes=(0, 1, 2))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("protocol", "write", "counted"),
    [
        ("localization", write_all_classes, 1),
        ("localization", write_subset, 2),
        ("segmentation", write_all_classes, 3),
        ("segmentation", write_subset, 2),
    ],
)
def test_birds_and_photos_of_imagenet_s(vit, tmp_path, protocol, write, counted):
    result = benchmark.run(protocol, vit, write(tmp_path / "data"), "tiba", out=tmp_path / "run")
    name = {"localization": "energy in box", "segmentation": "energy inside"}[protocol]
    figure = result.table.to_dict()["tiba"][name]
    assert not result.skipped
    assert 0 < figure["value"] < 100
    assert figure["samples"] == counted
