import dataclasses

import pytest

from tests.benchmark.helpers import choose_one, judge, read_samples
from whence.benchmark import build_protocol


def test_trust_of_photos(vit, photos):
    judged = build_protocol("trust", {"draws": 2, "cascade": 1})
    batch = read_samples(photos, 2)
    judged.start([sample.name for sample in batch], seed=3)
    rows = judge(judged, vit, batch, choose_one("integrated_gradients:steps=100"))
    for row in rows:
        assert row["float64_difference"] < 1e-4
        assert row["completeness_error"] < 0.01
        assert 0 < row["sensitivity"] < 1
    assert len(rows[0]["cascade"]) > 3
    assert "cascade" not in rows[1]
    (alone,) = judge(judged, vit, batch[1:], choose_one("integrated_gradients:steps=100"))
    assert alone["sensitivity"] == pytest.approx(rows[1]["sensitivity"], rel=1e-3)
    assert "completeness_error" not in judge(judged, vit, batch[1:], choose_one("tiba"))[0]


def test_trust_of_texts(bert, reviews):
    judged = build_protocol("trust", {"draws": 2, "cascade": 0})
    batch = read_samples(reviews, 2)
    judged.start([sample.name for sample in batch], seed=0)
    for row in judge(judged, bert, batch, choose_one("integrated_gradients:steps=64")):
        assert row["sensitivity"] > 0
        assert row["completeness_error"] < 0.05
    for row in judge(judged, bert, batch, choose_one("tiba")):
        assert row["float64_difference"] < 1e-3


@pytest.mark.slow
def test_trust_compiles_once_for_all_photos(vit, photos, programs):
    batch, method = read_samples(photos, 3), choose_one("tiba")
    found = []
    for loaded in (vit, dataclasses.replace(vit, compile=True)):
        judged = build_protocol("trust", {"draws": 2, "cascade": 1})
        judged.start([sample.name for sample in batch], seed=0)
        found.append([judge(judged, loaded, [sample], method)[0] for sample in batch])
    # The predicted class, and the same class of a photo with noise; neither copies in float64 nor
    # those with random layers.
    assert len(programs) == 2
    for plain, compiled in zip(*found, strict=True):
        assert compiled["sensitivity"] == pytest.approx(plain["sensitivity"], rel=1e-3)
        assert compiled.get("cascade") == plain.get("cascade")


def test_trust_compiles_nothing_for_single_texts(bert, reviews, programs):
    judged = build_protocol("trust", {"draws": 2, "cascade": 1})
    judge(
        judged,
        dataclasses.replace(bert, compile=True),
        read_samples(reviews, 2),
        choose_one("tiba"),
    )
    assert programs == []


def test_trust_in_another_precision_is_compared_with_the_full_one(vit, photos):
    judged = build_protocol("trust", {"draws": 1, "cascade": 0})
    batch, method = read_samples(photos, 1), choose_one("tiba")
    exact, coarse = (
        judge(judged, dataclasses.replace(vit, precision=p), batch, method)[0]
        for p in (None, "bfloat16")
    )
    assert exact["float64_difference"] < 1e-4 < coarse["float64_difference"] < 0.5
