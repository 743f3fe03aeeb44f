import pytest

from tests.benchmark.helpers import choose_one, judge, read_samples
from tests.saved import make_photo
from whence import datasets
from whence.benchmark import build_protocol
from whence.benchmark.photos import prepare_photo


def test_boxes_are_masks_too(cropping_vit):
    whole = datasets.Sample("x", make_photo(40, 36), boxes=((0, 0, 40, 36),))
    assert (prepare_photo(cropping_vit, whole).boxes == 1).all()
    (row,) = judge(build_protocol("segmentation", {}), cropping_vit, [whole], choose_one("tiba"))
    assert row["pointing_game"] == 1
    assert row["energy_inside"] == pytest.approx(1)
    assert "correct" not in row


def test_segmentation_counts(vit, masked):
    batch = read_samples(masked)
    rows = judge(build_protocol("segmentation", {}), vit, batch, choose_one("gae"))
    for sample, row in zip(batch, rows, strict=True):
        prepared = vit.prepare([sample.content])
        heat = vit.explain(prepared, method="gae").heatmap()[0].double()
        heat = (heat - heat.min()) / (heat.max() - heat.min())
        found, truth = heat > heat.mean(), prepare_photo(vit, sample).mask
        known = truth != 255
        assert row["labelled"] == int(known.sum())
        assert row["correct"] == int(((found == (truth == 1)) & known).sum())
        both = int((found & (truth == 1)).sum())
        either = int(((found | (truth == 1)) & known).sum())
        assert (row["intersection_foreground"], row["union_foreground"]) == (both, either)
        assert row["pointing_game"] in (0, 1)
