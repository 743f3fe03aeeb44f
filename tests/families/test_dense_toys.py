"""Trained toys that find shapes in drawings: do maps of boxes and of segments lie on them?"""

import numpy as np
import pytest
from benchmarks.dense import (
    LABELS,
    SIDE,
    draw_shapes,
    measure_accuracy,
    measure_boxes,
    measure_segments,
    train,
)


@pytest.fixture(scope="module")
def drawings():
    random = np.random.default_rng(1000)
    return [draw_shapes(random) for _ in range(15)]


def test_drawings_are_what_they_say(drawings):
    for one in drawings:
        for third, (label, (left, top, right, bottom)) in enumerate(
            zip(one.labels, one.boxes, strict=True)
        ):
            columns = slice(third * SIDE // 3, (third + 1) * SIDE // 3)
            assert (one.mask[:, columns] > 0).any() == (label < len(LABELS))
            if label < len(LABELS):
                inside = one.mask[top : bottom + 1, left : right + 1]
                assert set(np.unique(inside)) <= {0, label + 1}
                assert (inside == label + 1).mean() > 0.4


@pytest.mark.slow
def test_maps_of_boxes_lie_on_their_objects(drawings):
    model = train("detector")
    assert measure_accuracy(model, drawings) > 0.97
    for method in ("whence", "tiba", "gae", "attnlrp"):
        hits, share = measure_boxes(model, drawings, method)
        assert hits >= 0.95, (method, hits)
        assert share > (0.15 if method == "whence" else 0.6), (method, share)


@pytest.mark.slow
def test_maps_of_segments_lie_on_their_objects(drawings):
    model = train("segmenter")
    assert measure_accuracy(model, drawings) > 0.85
    for method in ("tiba", "gae", "input_x_gradient"):
        hits, share = measure_segments(model, drawings, method)
        assert hits >= 0.9, (method, hits)
        assert share > 0.7, (method, share)
