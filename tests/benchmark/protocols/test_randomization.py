import numpy as np
import pytest
import torch
from scipy import stats

from tests.benchmark.helpers import choose_one, judge, read_samples
from whence import Explainer, WhenceError
from whence._util.fingerprint import hash_weights
from whence.benchmark import build_protocol
from whence.metrics.trust import randomize_model


def rise_plainly(own, random, bins):
    before, after = (stats.entropy(np.histogram(one, bins=bins)[0]) for one in (own, random))
    return (after - before) / before


def test_rise_of_photos(vit, photos):
    batch, before = read_samples(photos, 3), hash_weights(vit.model)
    judged = build_protocol("randomization", {"bins": 12})
    judged.start([sample.name for sample in batch], seed=4)
    rows = judge(judged, vit, batch, choose_one("gae"))
    random = Explainer(randomize_model(vit.model, 4))
    for sample, row in zip(batch, rows, strict=True):
        pixels = vit.prepare([sample.content]).inputs
        own = vit.explainer.explain(pixels, method="gae")
        other = random.explain(pixels, target=own.target.tolist(), method="gae")
        maps = [one.heatmap().double().numpy() for one in (own, other)]
        assert row["predicted"] == int(own.target)
        assert row["rise"] == pytest.approx(rise_plainly(*maps, 12), abs=1e-6)
        assert -1 <= row["correlation"] <= 1
    assert hash_weights(vit.model) == before
    judged.start([], seed=5)
    assert judge(build_protocol("randomization", {}), vit, batch, choose_one("gae")) != rows


def test_rise_of_texts_knows_no_padding(bert, reviews):
    batch, method = read_samples(reviews, 3), choose_one("gae")
    judged = build_protocol("randomization", {})
    together = judge(judged, bert, batch, method)
    for sample, row in zip(batch, together, strict=True):
        (alone,) = judge(judged, bert, [sample], method)
        assert alone["rise"] == pytest.approx(row["rise"], abs=1e-9)
        inputs = bert.prepare([sample.content]).inputs
        own = bert.explainer.explain(dict(inputs), method="gae").scores[0].double().numpy()
        bins = int(np.ceil(np.sqrt(len(own))))
        expected = stats.entropy(np.histogram(own, bins=bins)[0])
        assert row["complexity"] == pytest.approx(expected, abs=1e-9)


def test_a_method_that_does_not_look_at_the_model_does_not_rise(vit, photos):
    rows = judge(
        build_protocol("randomization", {}), vit, read_samples(photos, 2), choose_one("random")
    )
    assert [row["rise"] for row in rows] == [0, 0]
    assert [row["correlation"] for row in rows] == [1, 1]


def test_random_copy_has_no_weight_of_the_model_which_stays_as_it_is(vit):
    model, before = vit.model, hash_weights(vit.model)
    first, again, other = (randomize_model(model, seed) for seed in (0, 0, 1))
    assert hash_weights(first) == hash_weights(again) != hash_weights(other)
    assert hash_weights(model) == before
    trained, random = (m.state_dict() for m in (model, first))
    weights = [name for name, value in trained.items() if value.is_floating_point()]
    unchanged = [n for n in weights if torch.equal(trained[n], random[n])]
    # What a fresh layer has in any case: ones and zeros of norms.
    assert all("norm" in name for name in unchanged)


def test_wrong_bins_are_refused():
    with pytest.raises(WhenceError, match="two bins"):
        build_protocol("randomization", {"bins": 1})
