"""Rows of the perturbation protocol against their definition, written plainly."""

import dataclasses

import pytest
import torch

from tests.benchmark.helpers import choose_one, judge, read_samples
from whence.benchmark import build_protocol


def trapezoid(values, steps):
    return 100 * sum(
        (values[i] + values[i + 1]) / 2 * (steps[i + 1] - steps[i]) for i in range(len(steps) - 1)
    )


STEPS = [round(0.1 * n, 1) for n in range(10)]


@pytest.mark.parametrize(("unit", "method"), [("pixels", "tiba"), ("patches", "gae")])
def test_perturbation_is_what_the_paper_says(vit, photos, unit, method):
    chosen = choose_one(method)
    batch = read_samples(photos)[::2]
    judged = build_protocol("perturbation", {"unit": unit})
    # One by one: rounding in a batch may swap pixels that tie.
    rows = [judge(judged, vit, [sample], chosen)[0] for sample in batch]
    assert [row["sample"] for row in rows] == [sample.name for sample in batch]
    for sample, row in zip(batch, rows, strict=True):
        prepared = vit.prepare([sample.content])
        pixels = prepared.inputs
        label = {"cat": 0, "dog": 1, "crane": 2}[sample.label]
        with torch.no_grad():
            clean = vit.model(pixels).logits
        predicted = int(clean.argmax())
        assert (row["label"], row["predicted"]) == (label, predicted)
        for which, index in (("predicted", predicted), ("target", label)):
            scores = vit.explain(prepared, target=index, **chosen.explain_arguments())
            values = scores.heatmap() if unit == "pixels" else scores.scores
            values = values.flatten().tolist()
            for order, sign in (("positive", -1), ("negative", 1)):
                ranking = sorted(range(len(values)), key=lambda u: (sign * values[u], u))
                correct, chances = [], []
                for step in STEPS:
                    gone = torch.zeros(len(values), dtype=torch.bool)
                    gone[ranking[: int(step * len(values) + 1e-9)]] = True
                    hidden = gone.reshape(32, 32) if unit == "pixels" else gone.reshape(4, 4)
                    if unit == "patches":
                        hidden = hidden.repeat_interleave(8, 0).repeat_interleave(8, 1)
                    black = torch.where(hidden, torch.tensor((0 - 0.5) / 0.5), pixels[0])
                    with torch.no_grad():
                        logits = vit.model(black[None]).logits[0]
                    correct.append(float(int(logits.argmax()) == label))
                    chances.append(float(logits.double().softmax(-1)[index]))
                start = f"{order}_{which}"
                assert row[f"{start}_accuracy"] == correct
                assert row[f"{start}_probability"] == pytest.approx(chances, abs=1e-5)
                assert row[f"{start}_auc"] == pytest.approx(trapezoid(correct, STEPS))
                assert row[f"{start}_probability_auc"] == pytest.approx(
                    trapezoid(chances, STEPS), abs=1e-3
                )
            apart = row[f"negative_{which}_auc"] - row[f"positive_{which}_auc"]
            assert row[f"difference_{which}_auc"] == pytest.approx(apart)


@pytest.mark.slow
def test_perturbation_compiles_for_whole_batches_only(vit, photos, programs):
    compiled = dataclasses.replace(vit, compile=True)
    batch, method = read_samples(photos, 4), choose_one("tiba")
    judged = build_protocol("perturbation", {})
    expected = judge(judged, vit, batch, method)
    assert any(row["label"] != row["predicted"] for row in expected)
    for _ in range(3):
        found = judge(judged, compiled, batch, method)
    ((pixels,),) = programs
    assert len(pixels) == 4
    for row, other in zip(found, expected, strict=True):
        assert row["label"] == other["label"]
        for name in ("positive_target_probability_auc", "negative_predicted_probability_auc"):
            assert row[name] == pytest.approx(other[name], abs=0.5)


def test_insertion_ends_where_deletion_begins(vit, photos):
    (row,) = judge(
        build_protocol("perturbation", {"insertion": True}),
        vit,
        read_samples(photos, 1),
        choose_one("tiba"),
    )
    with torch.no_grad():
        nothing = vit.model(torch.full((1, 3, 32, 32), -1.0)).logits.double().softmax(-1)
    empty = float(nothing[0, row["predicted"]])
    deleted = [*row["positive_predicted_probability"], empty]
    inserted = [empty, *reversed(row["negative_predicted_probability"])]
    assert row["deletion_predicted"] == pytest.approx(trapezoid(deleted, [*STEPS, 1.0]), abs=1e-3)
    assert row["insertion_predicted"] == pytest.approx(trapezoid(inserted, [*STEPS, 1.0]), abs=1e-3)


def test_without_labels_the_prediction_is_the_reference(vit, photos):
    batch = [dataclasses.replace(s, label=None) for s in read_samples(photos, 3)]
    judged = build_protocol("perturbation", {})
    rows = judge(judged, vit, batch, choose_one("tiba"))
    assert all(row["clean"] == 1 and "positive_target_auc" not in row for row in rows)


def test_rows_do_not_depend_on_the_batch(vit, photos):
    options = {"fill": "blur", "unit": "pixels+patches", "score": "probability"}
    judged, batch = build_protocol("perturbation", options), read_samples(photos)[::2]
    together = judge(judged, vit, batch, choose_one("tiba"))
    # Rounding may swap single pixels whose scores are nearly the same, and no patches.
    bounds = {"pixels": 1e-2, "patches": 1e-5}
    for sample, row in zip(batch, together, strict=True):
        (alone,) = judge(judged, vit, [sample], choose_one("tiba"))
        for unit, bound in bounds.items():
            curve = f"negative_predicted_probability_{unit}"
            assert alone[curve] == pytest.approx(row[curve], abs=bound)


def test_classes_that_hold_together_have_probabilities_of_their_own(vit, photos, monkeypatch):
    monkeypatch.setattr(vit.model.config, "problem_type", "multi_label_classification")
    (sample,) = read_samples(photos, 1)
    judged = build_protocol("perturbation", {"unit": "patches"})
    (row,) = judge(judged, vit, [sample], choose_one("tiba"))
    with torch.no_grad():
        logits = vit.model(vit.prepare([sample.content]).inputs).logits[0].double()
    curve, of_logit = (row[f"positive_predicted_{one}"] for one in ("probability", "logit"))
    assert curve == pytest.approx(torch.tensor(of_logit).double().sigmoid().tolist(), abs=1e-6)
    assert curve[0] == pytest.approx(float(logits[row["predicted"]].sigmoid()), abs=1e-5)
