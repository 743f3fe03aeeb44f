"""Rows of each protocol against their definitions, written plainly."""

import dataclasses
import sys

import numpy as np
import pytest
import torch

from whence import WhenceError, datasets
from whence.benchmark import build, choose
from whence.benchmark.pixels import see
from whence.models.scale import Scale


def samples(path, count=None, **options):
    dataset = datasets.load(path, **options)
    return [dataset.read(name) for name in dataset.names()[:count]]


def one(text):
    return choose(text)[0]


def trapezoid(values, steps):
    return 100 * sum(
        (values[i] + values[i + 1]) / 2 * (steps[i + 1] - steps[i]) for i in range(len(steps) - 1)
    )


STEPS = [round(0.1 * n, 1) for n in range(10)]


@pytest.mark.parametrize(("unit", "method"), [("pixels", "tiba"), ("patches", "gae")])
def test_perturbation_is_what_the_paper_says(vit, photos, unit, method):
    chosen = one(method)
    batch = samples(photos)[::2]
    judged = build("perturbation", {"unit": unit})
    # One by one: rounding in a batch may swap pixels that tie.
    rows = [judged.rows(vit, [sample], chosen)[0] for sample in batch]
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
            scores = vit.explain(prepared, target=index, **chosen.request())
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


def test_perturbation_compiles_for_whole_batches_only(vit, photos, programs):
    fast, batch, method = dataclasses.replace(vit, fast=True), samples(photos, 4), one("tiba")
    judged = build("perturbation", {})
    expected = judged.rows(vit, batch, method)
    assert any(row["label"] != row["predicted"] for row in expected)
    for _ in range(3):
        found = judged.rows(fast, batch, method)
    ((pixels,),) = programs
    assert len(pixels) == 4
    for row, other in zip(found, expected, strict=True):
        assert row["label"] == other["label"]
        for name in ("positive_target_probability_auc", "negative_predicted_probability_auc"):
            assert row[name] == pytest.approx(other[name], abs=0.5)


def test_insertion_ends_where_deletion_begins(vit, photos):
    (row,) = build("perturbation", {"insertion": True}).rows(vit, samples(photos, 1), one("tiba"))
    with torch.no_grad():
        nothing = vit.model(torch.full((1, 3, 32, 32), -1.0)).logits.double().softmax(-1)
    empty = float(nothing[0, row["predicted"]])
    deleted = [*row["positive_predicted_probability"], empty]
    inserted = [empty, *reversed(row["negative_predicted_probability"])]
    assert row["deletion_predicted"] == pytest.approx(trapezoid(deleted, [*STEPS, 1.0]), abs=1e-3)
    assert row["insertion_predicted"] == pytest.approx(trapezoid(inserted, [*STEPS, 1.0]), abs=1e-3)


def test_without_labels_the_prediction_is_the_reference(vit, photos):
    import dataclasses

    batch = [dataclasses.replace(s, label=None) for s in samples(photos, 3)]
    judged = build("perturbation", {})
    rows = judged.rows(vit, batch, one("tiba"))
    assert all(row["clean"] == 1 and "positive_target_auc" not in row for row in rows)


def test_rows_do_not_depend_on_the_batch(vit, photos):
    judged, batch = build("perturbation", {"fill": "blur"}), samples(photos)
    together = judged.rows(vit, batch, one("tiba"))
    for sample, row in zip(batch, together, strict=True):
        (alone,) = judged.rows(vit, [sample], one("tiba"))
        curve = "negative_predicted_probability"
        assert alone[curve] == pytest.approx(row[curve], abs=1e-3)


def test_black_is_black_before_normalisation(cropping_vit):
    scale = Scale.of(cropping_vit)
    mean, std = cropping_vit.preparation.processor.image_mean, (0.26862954, 0.26130258, 0.27577711)
    black = scale.to_model(torch.zeros(1, 3, 2, 2))
    expected = [-m / s for m, s in zip(mean, std, strict=True)]
    assert black[0, :, 0, 0].tolist() == pytest.approx(expected)
    values = torch.rand(2, 3, 4, 4)
    assert torch.allclose(scale.to_unit(scale.to_model(values)), values, atol=1e-6)


@pytest.mark.parametrize("view", ["model", "whole"])
def test_masks_take_the_way_of_photos(vit, cropping_vit, view):
    """A photo that shows its own mask still does, once both are prepared."""
    from PIL import Image

    for model in (vit, cropping_vit):
        for height, width in ((40, 90), (70, 33), (36, 36)):
            mask = np.zeros((height, width), dtype=np.uint8)
            mask[height // 4 : height // 2, width // 3 : width * 2 // 3] = 1
            image = Image.fromarray(np.stack([mask * 255] * 3, -1))
            seen = see(model, datasets.Sample("x", image, mask=mask), view)
            shown = Scale.of(model).to_unit(seen.pixels).mean(0)
            sure = (shown < 0.05) | (shown > 0.95)
            assert sure.float().mean() > 0.7
            assert torch.equal(seen.mask[sure] == 1, shown[sure] > 0.5)


def test_boxes_are_masks_too(cropping_vit):
    from tests.saved import photo

    whole = datasets.Sample("x", photo(40, 36), boxes=((0, 0, 40, 36),))
    assert (see(cropping_vit, whole).boxes == 1).all()
    (row,) = build("segmentation", {}).rows(cropping_vit, [whole], one("tiba"))
    assert row["pointing_game"] == 1
    assert row["energy_inside"] == pytest.approx(1)
    assert "correct" not in row


def test_segmentation_counts(vit, masked):
    batch = samples(masked)
    rows = build("segmentation", {}).rows(vit, batch, one("gae"))
    for sample, row in zip(batch, rows, strict=True):
        prepared = vit.prepare([sample.content])
        heat = vit.explain(prepared, method="gae").heatmap()[0].double()
        heat = (heat - heat.min()) / (heat.max() - heat.min())
        found, truth = heat > heat.mean(), see(vit, sample).mask
        known = truth != 255
        assert row["labelled"] == int(known.sum())
        assert row["correct"] == int(((found == (truth == 1)) & known).sum())
        both = int((found & (truth == 1)).sum())
        either = int(((found | (truth == 1)) & known).sum())
        assert (row["intersection_foreground"], row["union_foreground"]) == (both, either)
        assert row["pointing_game"] in (0, 1)


def test_a_mask_of_another_size_is_refused(vit):
    from tests.saved import photo

    odd = datasets.Sample("x", photo(40, 36), mask=np.zeros((36, 41), dtype=np.uint8))
    with pytest.raises(WhenceError, match="mask of 'x' is 41x36"):
        see(vit, odd)


def test_rationale(bert, reviews):
    batch = samples(reviews)
    rows = build("rationale", {}).rows(bert, batch, one("tiba"))
    for sample, row in zip(batch, rows, strict=True):
        target = {"NEG": 0, "POS": 1}[sample.label]
        encoded = bert.tokenizer(
            [list(sample.words)],
            is_split_into_words=True,
            truncation=True,
            max_length=64,
            return_tensors="pt",
        )
        from whence import Explainer

        found = Explainer(bert.model).explain(dict(encoded), target=target, method="tiba")
        words: dict[int, float] = {}
        for word, score in zip(encoded.word_ids(0), found.scores[0].tolist(), strict=True):
            if word is not None:
                words[word] = words.get(word, 0) + score
        assert row["read"] == len(words) <= len(sample.words) == row["words"]
        ranking = sorted(words, key=lambda w: (-words[w], w))
        for at, k in enumerate(range(10, 90, 10)):
            taken = set(ranking[:k])
            right = len(taken & {3, 4})
            precision, recall = right / len(taken), right / 2
            f1 = 2 * precision * recall / (precision + recall) if right else 0
            assert row["f1"][at] == pytest.approx(f1, abs=1e-9), (sample.name, k)

        def chance(kept, sample=sample, target=target):
            text = [sample.words[w] for w in kept]
            inputs = bert.tokenizer([text], is_split_into_words=True, return_tensors="pt")
            with torch.no_grad():
                return float(bert.model(**inputs).logits.double().softmax(-1)[0, target])

        full = chance(sorted(words))
        lost, missed = [], []
        for share in (0.01, 0.05, 0.1, 0.2, 0.5):
            highest = set(ranking[: int(np.ceil(share * len(words) - 1e-9))])
            lost.append(full - chance([w for w in sorted(words) if w not in highest]))
            missed.append(full - chance(sorted(highest)))
        assert row["comprehensiveness"] == pytest.approx(np.mean(lost), abs=1e-5)
        assert row["sufficiency"] == pytest.approx(np.mean(missed), abs=1e-5)
    assert rows[-1]["read"] < rows[-1]["words"]


def test_words_are_found_by_their_letters_too():
    from types import SimpleNamespace

    from whence.benchmark.protocols.rationale import word_numbers

    # "ab cde": a token "Ġcde" whose offsets begin at its space, or behind it
    encoding = SimpleNamespace(
        word_ids=[None, 0, 1, 1, None], offsets=[(0, 0), (0, 2), (2, 5), (5, 6), (0, 0)]
    )
    batch = SimpleNamespace(encodings=[encoding], joined=True)
    assert word_numbers(batch, [["ab", "cde"]]) == [[None, 0, 1, 1, None]]


def test_trust_of_photos(vit, photos):
    judged = build("trust", {"draws": 2, "cascade": 1})
    batch = samples(photos, 2)
    judged.begin([sample.name for sample in batch], seed=3)
    rows = judged.rows(vit, batch, one("integrated_gradients:steps=100"))
    for row in rows:
        assert row["float64_difference"] < 1e-4
        assert row["completeness_error"] < 0.01
        assert 0 < row["sensitivity"] < 1
    assert len(rows[0]["cascade"]) > 3
    assert "cascade" not in rows[1]
    (alone,) = judged.rows(vit, batch[1:], one("integrated_gradients:steps=100"))
    assert alone["sensitivity"] == pytest.approx(rows[1]["sensitivity"], rel=1e-3)
    assert "completeness_error" not in judged.rows(vit, batch[1:], one("tiba"))[0]


def test_trust_of_texts(bert, reviews):
    judged = build("trust", {"draws": 2, "cascade": 0})
    batch = samples(reviews, 2)
    judged.begin([sample.name for sample in batch], seed=0)
    for row in judged.rows(bert, batch, one("integrated_gradients:steps=64")):
        assert row["sensitivity"] > 0
        assert row["completeness_error"] < 0.05
    for row in judged.rows(bert, batch, one("tiba")):
        assert row["float64_difference"] < 1e-3


def test_trust_compiles_once_for_all_photos(vit, photos, programs):
    batch, method = samples(photos, 3), one("tiba")
    found = []
    for loaded in (vit, dataclasses.replace(vit, fast=True)):
        judged = build("trust", {"draws": 2, "cascade": 1})
        judged.begin([sample.name for sample in batch], seed=0)
        found.append([judged.rows(loaded, [sample], method)[0] for sample in batch])
    # The predicted class, and the same class of a photo with noise; neither copies in float64 nor
    # those with random layers.
    assert len(programs) == 2
    for plain, fast in zip(*found, strict=True):
        assert fast["sensitivity"] == pytest.approx(plain["sensitivity"], rel=1e-3)
        assert fast.get("cascade") == plain.get("cascade")


def test_trust_compiles_nothing_for_single_texts(bert, reviews, programs):
    judged = build("trust", {"draws": 2, "cascade": 1})
    judged.rows(dataclasses.replace(bert, fast=True), samples(reviews, 2), one("tiba"))
    assert programs == []


def test_trust_in_another_precision_is_compared_with_the_full_one(vit, photos):
    judged = build("trust", {"draws": 1, "cascade": 0})
    exact, coarse = (
        judged.rows(dataclasses.replace(vit, precision=p), samples(photos, 1), one("tiba"))[0]
        for p in (None, "bfloat16")
    )
    assert exact["float64_difference"] < 1e-4 < coarse["float64_difference"] < 0.5


def test_labels_of_other_names(bert, reviews):
    sample = samples(reviews, 1)[0]
    assert build("rationale", {}).labels.index(bert, sample) == 1
    turned = build("rationale", {"classes": "POS=0,NEG=positive"})
    assert turned.labels.index(bert, sample) == 0
    odd = datasets.Sample("x", "a film", label="fine")
    with pytest.raises(WhenceError, match=r"label of 'x' is not a class.*--classes"):
        turned.labels.index(bert, odd)


def test_options_are_checked():
    with pytest.raises(WhenceError, match="'fill' is 'zero' or 'mean' or 'blur', not 'grey'"):
        build("perturbation", {"fill": "grey"})
    with pytest.raises(WhenceError, match="segmentation benchmark has no option 'fill'"):
        build("segmentation", {"fill": "zero"})
    with pytest.raises(WhenceError, match="Did you mean 'trust'"):
        build("trusts", {})


def test_rows_need_no_storage(vit, photos, tmp_path, monkeypatch):
    """On a machine without pyarrow, rows are computed all the same."""
    from whence.benchmark.store import Store

    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert len(build("perturbation", {}).rows(vit, samples(photos, 2), one("tiba"))) == 2
    with pytest.raises(WhenceError, match=r"needs pyarrow.*whence\[benchmark\]"):
        Store(tmp_path / "out", {})
