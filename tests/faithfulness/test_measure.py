import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from tests.faithfulness.helpers import TEXT, area_of, explain_by
from tests.saved import make_photo
from whence import WhenceError, compare
from whence.faithfulness import STEPS, measure
from whence.models import forward


def test_steps_are_those_of_the_paper():
    assert pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]) == STEPS


def test_the_score_is_the_area_between(vit):
    prepared, explanations = explain_by(vit, make_photo(), "tiba")
    curves = measure(vit, prepared, explanations, draws=2).get("tiba")
    assert curves.score == pytest.approx(area_of(curves.least) - area_of(curves.most), abs=1e-9)
    assert curves.most[0] == curves.least[0] == pytest.approx(curves.random[0])
    clean = explanations["tiba"].logits[0].double().softmax(0)
    assert curves.most[0] == pytest.approx(float(clean[curves.target]))


def test_scores_the_other_way_round_get_the_opposite(vit):
    prepared, explanations = explain_by(vit, make_photo(), "gae")
    scores = torch.rand_like(explanations["gae"].scores)  # no two alike, so that no ties reverse
    right = dataclasses.replace(explanations["gae"], scores=scores)
    wrong = dataclasses.replace(right, scores=-scores)
    found = measure(vit, prepared, {"right": right, "wrong": wrong}, draws=0)
    assert found.get("wrong").score == pytest.approx(-found.get("right").score, abs=1e-6)
    better = max(("right", "wrong"), key=lambda name: found.get(name).score)
    assert [one.method for one in found.find_best()] == [better]
    assert found.rank_methods()[0].method == better


def test_the_random_curve_is_a_mean_of_seeded_draws(vit):
    prepared, explanations = explain_by(vit, make_photo(), "gae")
    one, again, other, three = (
        measure(vit, prepared, explanations, draws=draws, seed=seed).get("gae").random
        for draws, seed in ((1, 3), (1, 3), (1, 4), (3, 3))
    )
    assert one == again
    assert one != other
    first = torch.rand((3, 4, 4), generator=torch.Generator().manual_seed(3))
    kind = explanations["gae"]
    # Drawn scores as though a method had given them: the first draw, and the mean of all three.
    as_maps = {str(n): dataclasses.replace(kind, scores=first[n].reshape(1, 16)) for n in range(3)}
    found = measure(vit, prepared, as_maps, draws=0)
    assert one == pytest.approx(found.get("0").most, abs=1e-6)
    mean = np.mean([found.get(str(n)).most for n in range(3)], axis=0)
    assert three == pytest.approx(mean, abs=1e-6)


def test_the_model_runs_in_batches_and_equal_maps_run_once(vit, monkeypatch):
    prepared, explanations = explain_by(vit, make_photo(), "raw_attention", "gae", classes=3)
    rows, calls = [], []
    plain = forward.compute_logits

    def counted(loaded, inputs):
        rows.append(len(inputs))
        return plain(loaded, inputs)

    monkeypatch.setattr("whence.faithfulness.photos.compute_logits", counted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    found = measure(vit, prepared, explanations, draws=2)
    # One map of raw attention, three of gae, each in two orders; two draws; nine fractions each.
    assert rows == [32, 32, 26]
    assert sum(rows) == (2 * (1 + 3) + 2) * 9
    # Who watches is told every few rows.
    measure(vit, prepared, explanations, draws=2, progress=lambda *at: calls.append(at))
    assert calls == [(min(8 * n, 90), 90) for n in range(1, 13)]
    assert len(found.curves) == 6
    assert not found.get("raw_attention").class_specific
    raw = [one for one in found.curves if one.method == "raw_attention"]
    assert {one.class_name for one in raw} == {"cat", "dog", "crane"}
    # The same pixels go, and different classes are watched.
    assert torch.equal(raw[0].get_mask(4), raw[1].get_mask(4))
    assert sum(one.most[4] for one in raw) == pytest.approx(1)


def test_a_tie_has_no_single_winner(vit):
    prepared, explanations = explain_by(vit, make_photo(), "gae")
    twice = {"one": explanations["gae"], "two": explanations["gae"]}
    assert [one.method for one in measure(vit, prepared, twice, draws=0).find_best()] == [
        "one",
        "two",
    ]


def test_classes_that_hold_at_once_are_watched_by_sigmoid(vit):
    prepared, explanations = explain_by(vit, make_photo(), "gae", target=1)
    many = dataclasses.replace(explanations["gae"], multi_label=True)
    curves = measure(vit, prepared, {"gae": many}, draws=0).get("gae")
    assert curves.most[0] == pytest.approx(float(many.logits[0, 1].double().sigmoid()))


def test_in_one_call(embedded):
    found = compare(TEXT, ["gae", "random"], classes=2, faithfulness=True, draws=1).faithfulness
    assert [one.method for one in found.curves] == ["gae", "gae", "random", "random"]
    assert {one.class_name for one in found.curves} == {"negative", "positive"}
    assert found.rank_methods()[0].target == found.targets[0]
    photos = compare(make_photo(), ["gae"], target="dog", faithfulness=True).faithfulness
    assert photos.get("gae").class_name == "dog"
    assert photos.words is None


def test_what_cannot_be_measured_is_told(vit, bert):
    prepared, explanations = explain_by(vit, make_photo(), "gae")
    with pytest.raises(WhenceError, match="at least one method"):
        measure(vit, prepared, {})
    with pytest.raises(WhenceError, match="0 or more"):
        measure(vit, prepared, explanations, draws=-1)
    with pytest.raises(WhenceError, match="one input at a time"):
        measure(vit, vit.prepare([make_photo(), make_photo()]), explanations)
    number = dataclasses.replace(explanations["gae"], logits=torch.zeros(1, 1))
    with pytest.raises(WhenceError, match="single number"):
        measure(vit, prepared, {"gae": number})
    found = measure(vit, prepared, explanations, draws=0)
    with pytest.raises(WhenceError, match="there is no step 10"):
        found.get("gae").get_input(10)
    with pytest.raises(WhenceError, match="No random orders"):
        found.get("gae").get_input(1, "random")
    with pytest.raises(WhenceError, match="The order is one of"):
        found.get("gae").get_curve("best")
    with pytest.raises(WhenceError, match="'tiba' was not measured"):
        found.get("tiba")
    with pytest.raises(WhenceError, match="single word"):
        measure(bert, *explain_by(bert, "good", "gae"))
    other, _ = explain_by(bert, "good film", "gae")
    with pytest.raises(WhenceError, match="do not belong together"):
        measure(bert, other, explain_by(bert, TEXT, "gae")[1])


def test_a_class_is_watched_against_another(vit):
    photo = make_photo()
    measured = compare(photo, ["gae"], vit, target=2, against=0, faithfulness=True, draws=1)
    found = measured.faithfulness.get("gae")
    assert found.class_name.endswith(f"rather than {vit.class_names[0]}")
    for step, chance in enumerate(found.most):
        prepared = vit.prepare([photo])
        prepared.inputs = prepared.inputs.clone()
        black = vit.prepare([Image.new("RGB", photo.size)]).inputs
        deleted = found.get_mask(step)
        prepared.inputs[0, :, deleted] = black[0, :, deleted]
        logits = vit.model(prepared.inputs).logits[0].detach().double()
        assert chance == pytest.approx(float(torch.sigmoid(logits[2] - logits[0])), abs=1e-5)
