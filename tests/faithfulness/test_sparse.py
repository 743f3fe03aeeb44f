"""Steps between two sure ones are left out, and lie on a straight line; others are run."""

from dataclasses import replace

import pytest
import torch

from tests.faithfulness.helpers import area_of, explain_by
from tests.saved import make_photo
from whence import WhenceError
from whence.faithfulness import measure, measure_photos
from whence.faithfulness.sparse import delete_sparsely, interpolate_left_out
from whence.metrics.deletion import FRACTIONS

pytestmark = pytest.mark.usefixtures("full_precision")

# Probability by tenths that are deleted: sure at first, then not, then sure again but for a bump.
CURVE = torch.tensor([0.999, 0.7, 0.997, 0.996, 0.6, 0.4, 0.004, 0.5, 0.002, 0.001])
RUN = [0, 3, 4, 5, 6, 9]


def run_toy(orders: int):
    """Delete ten units in order; the model's logits are those of the curve, and rows are kept."""
    ranks = torch.arange(10).repeat(orders, 1)
    rows = []

    def run(deleted, inputs):
        rows.extend(zip(deleted.sum(1).tolist(), inputs.tolist(), strict=True))
        chance = CURVE[deleted.sum(1)]
        return torch.stack([chance.logit(), torch.zeros(len(chance))], 1)

    clean = torch.tensor([[float(CURVE[0].logit()), 0.0]]).expand(orders, -1)
    watch = lambda logits: logits.softmax(-1)[..., 0]  # noqa: E731
    logits = delete_sparsely(ranks, run, torch.arange(orders), clean, watch, 4)
    return watch(torch.cat([clean[:, None], logits], 1)), rows


def test_steps_between_sure_ones_are_not_run():
    values, rows = run_toy(orders=2)
    assert sorted(rows) == sorted((step, order) for order in (0, 1) for step in RUN[1:])
    assert values.shape == (2, 1 + len(FRACTIONS))
    for curve in values:
        assert curve[RUN].tolist() == pytest.approx(CURVE[RUN].tolist(), abs=1e-5)
        assert curve.isnan().nonzero().flatten().tolist() == [1, 2, 7, 8]


def test_steps_that_were_left_out_lie_on_a_line():
    values, _ = run_toy(orders=1)
    (filled,) = interpolate_left_out(values)
    assert filled.tolist() == pytest.approx(
        [0.999, 0.998, 0.997, 0.996, 0.6, 0.4, 0.004, 0.003, 0.002, 0.001], abs=1e-5
    )


def test_photos_together_are_as_each_alone_with_all_steps(vit):
    """Of a model that is never sure, nothing is left out."""
    photos = [
        explain_by(vit, make_photo(seed=seed), "gae", "tiba", classes=2) for seed in (0, 1, 2)
    ]
    together = measure_photos(vit, photos, chunk_size=5)
    for (prepared, explanations), found in zip(photos, together, strict=True):
        alone = measure(vit, prepared, explanations, draws=0)
        assert len(found.curves) == len(alone.curves) == 4
        for one, other in zip(found.curves, alone.curves, strict=True):
            assert (one.method, one.target) == (other.method, other.target)
            assert one.most == pytest.approx(other.most, abs=1e-6)
            assert one.least == pytest.approx(other.least, abs=1e-6)
            assert torch.equal(one.get_mask(4, "least"), other.get_mask(4, "least"))
            assert one.random is None


def test_of_a_sure_model_the_ends_are_those_with_all_steps(vit, monkeypatch):
    """The head's weights are made large, so that probabilities are near 0 or 1."""
    weight = vit.model.classifier.weight
    monkeypatch.setattr(weight, "data", weight.data * 200)
    photo = explain_by(vit, make_photo(), "gae")
    rows = []
    plain = vit.run
    monkeypatch.setattr(type(vit), "run", lambda self, x: (rows.append(len(x)), plain(x))[1])
    (found,) = measure_photos(vit, [photo])
    sparse, rows[:] = sum(rows), []
    whole = measure(vit, *photo, draws=0).get("gae")
    assert sparse < sum(rows) == 18
    for order in ("most", "least"):
        curve, all_steps = found.get("gae").get_curve(order), whole.get_curve(order)
        ends = slice(None, None, 3)
        assert curve[ends] == pytest.approx(all_steps[ends], abs=1e-5)
        assert found.get("gae").auc(order) == pytest.approx(area_of(curve))


def test_a_model_that_was_loaded_in_bfloat16_runs_in_it(vit):
    """Only where photos are measured for the report: `measure` stays in full precision."""
    photo = explain_by(vit, make_photo(), "gae")
    coarse = replace(vit, precision="bfloat16")
    (found,) = measure_photos(coarse, [photo])
    exact = measure(vit, *photo, draws=0).get("gae")
    with torch.autocast("cpu", torch.bfloat16):
        expected = measure(vit, *photo, draws=0).get("gae")
    for order in ("most", "least"):
        assert torch.equal(expected.get_mask(4, order), exact.get_mask(4, order))
        curve = found.get("gae").get_curve(order)
        assert curve[0] == exact.most[0]  # the explanation's own
        assert curve[1:] == pytest.approx(expected.get_curve(order)[1:], abs=1e-6)
    assert found.get("gae").most != exact.most
    assert measure(coarse, *photo, draws=0).get("gae").most == exact.most


def test_what_cannot_be_measured_is_told(vit):
    one, other = (explain_by(vit, make_photo(seed=seed), "gae") for seed in (0, 1))
    with pytest.raises(WhenceError, match="at least one method"):
        measure_photos(vit, [one, (other[0], {})])
