import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification, ViTForImageClassification

from tests.saved import photo
from whence import WhenceError, faithfulness, models
from whence.faithfulness import STEPS, compare, measure
from whence.models import forward

TEXT = "the film is wonderful , and not bad ."


@pytest.fixture(scope="module")
def vit(image_model):
    return models.load(image_model)


@pytest.fixture(scope="module")
def bert(text_model):
    return models.load(text_model)


def explained(loaded, content, *methods, **classes):
    prepared = loaded.prepare([content])
    return prepared, {name: loaded.explain(prepared, method=name, **classes) for name in methods}


def by_area(curve):
    """The trapezoid rule, written out."""
    return 100 * sum(0.1 * (a + b) / 2 for a, b in pairwise(curve))


def test_steps_are_those_of_the_paper():
    assert pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]) == STEPS


@pytest.mark.parametrize("order", ["most", "least"])
def test_photo_curves_are_those_of_a_loop(vit, image_model, order):
    """One plain forward a step, on pixels blackened before normalisation."""
    prepared, explanations = explained(vit, photo(), "gae", classes=[2, 0])
    found = measure(vit, prepared, explanations, draws=0)
    model = ViTForImageClassification.from_pretrained(image_model, dtype=torch.float32).eval()
    for at, target in enumerate((2, 0)):
        heat = explanations["gae"].heatmap()[0, at].flatten()
        ranked = heat.argsort(descending=order == "most", stable=True)
        values = []
        for tenths in range(10):
            pixels = prepared.inputs.clone().flatten(2)
            pixels[:, :, ranked[: 1024 * tenths // 10]] = (0 - 0.5) / 0.5
            with torch.no_grad():
                logits = model(pixels.reshape(1, 3, 32, 32)).logits[0]
            values.append(float(logits.double().softmax(0)[target]))
        curves = found.of("gae", target)
        assert curves.curve(order) == pytest.approx(values, abs=1e-6)
        assert curves.auc(order) == pytest.approx(by_area(values), abs=1e-4)


@pytest.mark.parametrize("order", ["most", "least"])
def test_text_curves_are_those_of_a_loop(bert, text_model, order):
    """Words of highest summed scores are taken out of the list, which is tokenised again."""
    prepared, explanations = explained(bert, TEXT, "gae", target="positive")
    curves = measure(bert, prepared, explanations, draws=0).of("gae")
    model = BertForSequenceClassification.from_pretrained(text_model, dtype=torch.float32).eval()
    words = explanations["gae"].words()
    sign = -1 if order == "most" else 1
    ranked = sorted(range(9), key=lambda at: (sign * words[at][1], at))
    values = []
    for tenths in range(10):
        gone = set(ranked[: 9 * tenths // 10])
        left = " ".join(word for at, (word, _) in enumerate(words) if at not in gone)
        assert curves.masked(tenths, order) == left
        assert curves.removed(tenths, order).tolist() == [at in gone for at in range(9)]
        with torch.no_grad():
            logits = model(**bert.tokenizer(left, return_tensors="pt")).logits[0]
        values.append(float(logits.double().softmax(0)[1]))
    assert curves.curve(order) == pytest.approx(values, abs=1e-6)


def test_the_score_is_the_area_between(vit):
    prepared, explanations = explained(vit, photo(), "tiba")
    curves = measure(vit, prepared, explanations, draws=2).of("tiba")
    assert curves.score == pytest.approx(by_area(curves.least) - by_area(curves.most), abs=1e-9)
    assert curves.most[0] == curves.least[0] == pytest.approx(curves.random[0])
    clean = explanations["tiba"].logits[0].double().softmax(0)
    assert curves.most[0] == pytest.approx(float(clean[curves.target]))


def test_scores_the_other_way_round_get_the_opposite(vit):
    prepared, explanations = explained(vit, photo(), "gae")
    scores = torch.rand_like(explanations["gae"].scores)  # no two alike, so that no ties reverse
    right = dataclasses.replace(explanations["gae"], scores=scores)
    wrong = dataclasses.replace(right, scores=-scores)
    found = measure(vit, prepared, {"right": right, "wrong": wrong}, draws=0)
    assert found.of("wrong").score == pytest.approx(-found.of("right").score, abs=1e-6)
    better = max(("right", "wrong"), key=lambda name: found.of(name).score)
    assert [one.method for one in found.best()] == [better]
    assert found.ranked()[0].method == better


def test_the_random_curve_is_a_mean_of_seeded_draws(vit):
    prepared, explanations = explained(vit, photo(), "gae")
    one, again, other, three = (
        measure(vit, prepared, explanations, draws=draws, seed=seed).of("gae").random
        for draws, seed in ((1, 3), (1, 3), (1, 4), (3, 3))
    )
    assert one == again
    assert one != other
    first = torch.rand((3, 4, 4), generator=torch.Generator().manual_seed(3))
    kind = explanations["gae"]
    # Drawn scores as though a method had given them: the first draw, and the mean of all three.
    as_maps = {str(n): dataclasses.replace(kind, scores=first[n].reshape(1, 16)) for n in range(3)}
    found = measure(vit, prepared, as_maps, draws=0)
    assert one == pytest.approx(found.of("0").most, abs=1e-6)
    mean = np.mean([found.of(str(n)).most for n in range(3)], axis=0)
    assert three == pytest.approx(mean, abs=1e-6)


def test_a_masked_photo_is_black_where_the_most_relevant_pixels_were(vit):
    prepared, explanations = explained(vit, photo(), "gae")
    curves = measure(vit, prepared, explanations, draws=1).of("gae")
    whole = np.asarray(curves.masked(0))
    assert whole.shape == (32, 32, 3)
    seen = ((prepared.inputs[0] * 0.5 + 0.5) * 255).permute(1, 2, 0).numpy()
    assert np.abs(whole - seen).max() <= 0.51
    for order in ("most", "least", "random"):
        gone = curves.removed(5, order)
        assert gone.shape == (32, 32)
        assert int(gone.sum()) == 512
        half = np.asarray(curves.masked(5, order))
        assert (half[gone.numpy()] == 0).all()
        assert (half[~gone.numpy()] == whole[~gone.numpy()]).all()
    heat = explanations["gae"].heatmap()[0]
    assert heat[curves.removed(3)].min() >= heat[~curves.removed(3)].max()


def test_the_model_runs_in_batches_and_equal_maps_run_once(vit, monkeypatch):
    prepared, explanations = explained(vit, photo(), "raw_attention", "gae", classes=3)
    rows, told = [], []
    plain = forward.logits_of

    def counted(loaded, inputs):
        rows.append(len(inputs))
        return plain(loaded, inputs)

    monkeypatch.setattr(faithfulness.curves, "logits_of", counted)
    found = measure(vit, prepared, explanations, draws=2, progress=lambda *at: told.append(at))
    # One map of raw attention, three of gae, each in two orders; two draws; nine fractions each.
    total = (2 * (1 + 3) + 2) * 9
    assert sum(rows) == total
    assert max(rows) <= 32
    assert len(rows) == 3
    assert told == [(32, total), (64, total), (90, total)]
    assert len(found.curves) == 6
    assert not found.of("raw_attention").class_specific
    raw = [one for one in found.curves if one.method == "raw_attention"]
    assert {one.class_name for one in raw} == {"cat", "dog", "crane"}
    # The same pixels go, and different classes are watched.
    assert torch.equal(raw[0].removed(4), raw[1].removed(4))
    assert sum(one.most[4] for one in raw) == pytest.approx(1)


def test_a_tie_has_no_single_winner(vit):
    prepared, explanations = explained(vit, photo(), "gae")
    twice = {"one": explanations["gae"], "two": explanations["gae"]}
    assert [one.method for one in measure(vit, prepared, twice, draws=0).best()] == ["one", "two"]


def test_classes_that_hold_at_once_are_watched_by_sigmoid(vit):
    prepared, explanations = explained(vit, photo(), "gae", target=1)
    many = dataclasses.replace(explanations["gae"], multi_label=True)
    curves = measure(vit, prepared, {"gae": many}, draws=0).of("gae")
    assert curves.most[0] == pytest.approx(float(many.logits[0, 1].double().sigmoid()))


def test_words_beyond_the_models_length_do_not_move_in(bert):
    text = " ".join(["good", "film"] * 60) + " awful"
    prepared, explanations = explained(bert, text, "gae")
    found = measure(bert, prepared, explanations, draws=1)
    curves = found.of("gae")
    assert len(found.words) == 62  # 64 positions, two of them for special tokens
    assert curves.masked(0) == " ".join(["good", "film"] * 31)
    for order in ("most", "least", "random"):
        assert len(curves.masked(9, order).split()) == 62 - 55


def test_pieces_of_words_go_together_and_neighbours_do_not_join(bert):
    prepared, explanations = explained(bert, "wonderfully good,film\n\nis awful", "gae")
    found = measure(bert, prepared, explanations, draws=0)
    assert found.words == ("wonderfully", "good", ",", "film", "is", "awful")
    curves = dataclasses.replace(found.of("gae"), _turns={"most": torch.tensor([4, 5, 0, 3, 1, 2])})
    assert curves.masked(0) == "wonderfully good,film\n\nis awful"
    assert curves.masked(2) == "wonderfully good film\n\nis awful"
    assert curves.masked(5) == "wonderfully good film"
    assert curves.masked(9) == "good"


def test_a_text_that_spells_special_tokens(bert):
    prepared, explanations = explained(bert, "good [SEP]", "gae")
    found = measure(bert, prepared, explanations, draws=1)
    assert found.words == ("good", "[SEP]")
    assert {found.of("gae").masked(5, order) for order in ("most", "least")} == {"good", "[SEP]"}


def test_in_one_call(embedded):
    found = compare(TEXT, ["gae", "random"], classes=2, draws=1)
    assert [one.method for one in found.curves] == ["gae", "gae", "random", "random"]
    assert {one.class_name for one in found.curves} == {"negative", "positive"}
    assert found.ranked()[0].target == found.targets[0]
    photos = compare(photo(), ["gae"], target="dog", draws=0)
    assert photos.of("gae").class_name == "dog"
    assert photos.words is None


def test_what_cannot_be_measured_is_told(vit, bert):
    prepared, explanations = explained(vit, photo(), "gae")
    with pytest.raises(WhenceError, match="at least one method"):
        measure(vit, prepared, {})
    with pytest.raises(WhenceError, match="0 or more"):
        measure(vit, prepared, explanations, draws=-1)
    with pytest.raises(WhenceError, match="one input at a time"):
        measure(vit, vit.prepare([photo(), photo()]), explanations)
    number = dataclasses.replace(explanations["gae"], logits=torch.zeros(1, 1))
    with pytest.raises(WhenceError, match="single number"):
        measure(vit, prepared, {"gae": number})
    found = measure(vit, prepared, explanations, draws=0)
    with pytest.raises(WhenceError, match="there is no step 10"):
        found.of("gae").masked(10)
    with pytest.raises(WhenceError, match="No random orders"):
        found.of("gae").masked(1, "random")
    with pytest.raises(WhenceError, match="The order is one of"):
        found.of("gae").curve("best")
    with pytest.raises(WhenceError, match="'tiba' was not measured"):
        found.of("tiba")
    with pytest.raises(WhenceError, match="single word"):
        measure(bert, *explained(bert, "good", "gae"))
    other, _ = explained(bert, "good film", "gae")
    with pytest.raises(WhenceError, match="do not belong together"):
        measure(bert, other, explained(bert, TEXT, "gae")[1])
