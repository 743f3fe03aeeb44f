"""Rows of the SaCo protocol against its definition, written plainly."""

import pytest
import torch

from tests.benchmark.helpers import choose_one, judge, read_samples
from tests.metrics.test_saco import compute_plainly
from whence import WhenceError
from whence.benchmark import build_protocol
from whence.benchmark.columns import to_columns


@pytest.mark.parametrize(("unit", "groups"), [("pixels", 10), ("patches", 5)])
def test_saco_replaces_one_group_at_a_time(vit, photos, unit, groups):
    chosen = choose_one("tiba")
    protocol = build_protocol("saco", {"unit": unit, "groups": groups})
    for sample in read_samples(photos)[::4]:
        (row,) = judge(protocol, vit, [sample], chosen)
        prepared = vit.prepare([sample.content])
        pixels = prepared.inputs[0]
        explanation = vit.explain(prepared, **chosen.explain_arguments())
        target = int(explanation.target)
        values = explanation.heatmap() if unit == "pixels" else explanation.scores

        def run(image, target=target):
            with torch.no_grad():
                return float(vit.model(image[None]).logits[0].double().softmax(-1)[target])

        def effects(group, pixels=pixels, run=run):
            gone = torch.zeros(1024 if unit == "pixels" else 16, dtype=torch.bool)
            gone[group] = True
            hidden = gone.reshape(32, 32) if unit == "pixels" else gone.reshape(4, 4)
            if unit == "patches":
                hidden = hidden.repeat_interleave(8, 0).repeat_interleave(8, 1)
            mean = pixels.mean((1, 2), keepdim=True)
            return run(pixels) - run(torch.where(hidden, mean, pixels))

        scores, found, drops = values.double().flatten().tolist(), iter(row["drops"]), []

        def measure(group, effects=effects, found=found, drops=drops):
            drops.append(effects(group))
            return next(found)  # not the plain one, whose rounding may order two groups otherwise

        assert row["saco"] == pytest.approx(compute_plainly(scores, measure, groups), abs=1e-9)
        assert row["drops"] == pytest.approx(drops, abs=1e-5)
        assert row["predicted"] == target


def test_a_map_that_is_the_same_everywhere_has_zero_and_is_named(vit, photos, monkeypatch):
    protocol = build_protocol("saco", {})
    samples = read_samples(photos, 2)
    monkeypatch.setattr("whence.explanation.Explanation.heatmap", lambda _: torch.ones(2, 32, 32))
    rows = judge(protocol, vit, samples, choose_one("tiba"))
    assert [row["saco"] for row in rows] == [0, 0]
    assert protocol.write_notes({"tiba": to_columns(rows)})[-1].endswith("have 0: 2 of tiba.")


def test_wrong_numbers_of_groups(vit, photos):
    with pytest.raises(WhenceError, match="2 or more, not 1"):
        build_protocol("saco", {"groups": 1})
    protocol = build_protocol("saco", {"groups": 17, "unit": "patches"})
    with pytest.raises(WhenceError, match="no more than the 16 units"):
        judge(protocol, vit, read_samples(photos, 1), choose_one("tiba"))
