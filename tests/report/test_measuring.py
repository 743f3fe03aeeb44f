"""Faithfulness of several inputs: together as alone, and one that fails does not stop others."""

import pytest

from tests.faithfulness.helpers import explain_by
from tests.saved import make_photo
from whence.pipeline import ExplainedInput
from whence.report.measuring import count_measured_at_once, measure_inputs


def explain_photos(vit, *seeds):
    explained = [explain_by(vit, make_photo(seed=seed), "gae") for seed in seeds]
    return [
        ExplainedInput(number, vit, explanations, prepared)
        for number, (prepared, explanations) in enumerate(explained)
    ]


def test_photos_are_measured_together_as_alone(vit, full_precision):
    inputs = explain_photos(vit, 0, 1, 2)
    together = measure_inputs([*inputs, ExplainedInput(3, vit, error="It is damaged.")])
    assert list(together) == [0, 1, 2]
    for one in inputs:
        (alone,) = measure_inputs([one]).values()
        assert together[one.index].get("gae").most == pytest.approx(alone.get("gae").most, abs=1e-6)


def test_one_that_fails_does_not_stop_the_others(vit):
    good, odd = explain_photos(vit, 0, 1)
    odd.explanations.clear()
    found = measure_inputs([good, odd])
    assert found[0].get("gae").method == "gae"
    assert found[1] == "Name at least one method whose faithfulness is measured"


def test_on_a_cpu_photos_are_measured_one_by_one(vit, bert):
    assert count_measured_at_once(vit) == count_measured_at_once(bert) == 1
