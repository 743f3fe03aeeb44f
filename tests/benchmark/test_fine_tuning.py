import math

import pytest
import torch
from torch.nn import functional as F

from tests.benchmark.helpers import read_samples
from whence import WhenceError, datasets
from whence._util.fingerprint import hash_weights
from whence._util.random import SeededRandom
from whence.benchmark import fine_tuning
from whence.benchmark.fine_tuning import (
    FineTuning,
    choose_samples,
    draw_deleted,
    load_copy,
    measure_quality,
    predict,
    save_copy,
)
from whence.benchmark.labels import LabelMapping
from whence.benchmark.masked_samples import PhotoMasker

PLAN = FineTuning(steps=12, rate=1e-3, beta=0.5, seed=3, batch=8)


@pytest.fixture(scope="module")
def groups(vit, photos):
    dataset = datasets.load(photos)
    return PhotoMasker("zero").read(vit, dataset, dataset.list_names())


def test_a_copy_learns_to_decide_as_the_model_does_and_the_model_stays_as_it_was(vit, groups):
    before = hash_weights(vit.model)
    flags = [parameter.requires_grad for parameter in vit.model.parameters()]
    with torch.no_grad():  # as callers may have it
        copies = [PLAN.run(vit, groups) for _ in range(2)]
    assert hash_weights(vit.model) == before
    assert [parameter.requires_grad for parameter in vit.model.parameters()] == flags
    assert all(parameter.grad is None for parameter in vit.model.parameters())
    assert hash_weights(copies[0].model) == hash_weights(copies[1].model) != before

    def lose(loaded):
        total = 0.0
        for group in groups:
            truth = predict(vit, group).softmax(1)
            for draw in range(5):
                deleted = draw_deleted(group.units, PLAN.beta, SeededRandom(100 + draw))
                total += float(F.cross_entropy(predict(loaded, group, deleted), truth))
        return total

    assert lose(copies[0]) < lose(vit)


def test_no_step_changes_nothing(vit, groups):
    unchanged = FineTuning(steps=0, rate=1e-3, beta=0.5, seed=0).run(vit, groups)
    assert hash_weights(unchanged.model) == hash_weights(vit.model)


def test_a_rate_that_ruins_the_copy_is_an_error(vit, groups, monkeypatch):
    monkeypatch.setattr(vit.model.classifier.weight, "data", vit.model.classifier.weight * math.inf)
    with pytest.raises(WhenceError, match="smaller rate"):
        FineTuning(steps=1, rate=1.0, beta=0.5, seed=0).run(vit, groups)


@pytest.mark.parametrize(("steps", "rate"), [(-1, 1e-3), (1, 0.0), (1, math.nan), (1, math.inf)])
def test_numbers_that_fine_tune_nothing_are_refused(steps, rate):
    with pytest.raises(WhenceError, match="0 steps or more and a rate above 0"):
        FineTuning(steps=steps, rate=rate, beta=0.5, seed=0)


def test_removed_units_are_a_share_of_each_row():
    units = torch.tensor([10, 4, 1, 0])
    found = draw_deleted(units, 0.3, SeededRandom(0))
    assert found.sum(1).tolist() == [3, 1, 1, 0]
    assert not found[1, 4:].any()
    assert not torch.equal(found, draw_deleted(units, 0.3, SeededRandom(1)))


def test_a_copy_is_read_as_it_was_written(vit, groups, tmp_path):
    path = tmp_path / "copy.safetensors"
    assert load_copy(path, "key", vit) is None
    student = FineTuning(steps=1, rate=1e-3, beta=0.5, seed=0).run(vit, groups)
    save_copy(path, "key", student, {"copy whole": 0.25})
    found, quality = load_copy(path, "key", vit)
    assert hash_weights(found.model) == hash_weights(student.model)
    assert quality == {"copy whole": 0.25}
    assert load_copy(path, "another key", vit) is None
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no such file"):
        path.write_bytes(damaged)
        assert load_copy(path, "key", vit) is None


def test_weights_that_modules_share_stay_shared(vit, groups, tmp_path):
    student = FineTuning(steps=0, rate=1e-3, beta=0.5, seed=0).run(vit, groups)
    student.model.again = student.model.classifier
    save_copy(tmp_path / "copy", "key", student, {})
    found, _ = load_copy(tmp_path / "copy", "key", student)
    assert found.model.again is found.model.classifier
    assert hash_weights(found.model) == hash_weights(student.model)


def test_quality_is_against_labels_or_the_model_itself(vit, photos, groups, tmp_path):
    found = measure_quality(vit, vit, groups, LabelMapping(), PLAN)
    samples = read_samples(photos)
    logits = [vit.model(vit.prepare([one.content]).inputs).logits for one in samples]
    right = [int(one.argmax()) for one in logits]
    labels = [LabelMapping().find_index(vit, one) for one in samples]
    hits = sum(a == b for a, b in zip(right, labels, strict=True))
    assert found["model whole"] == found["copy whole"] == pytest.approx(hits / len(samples))
    assert found["labelled"] == found["checked"] == len(samples)
    for number, sample in enumerate(samples[:3]):
        sample.content.save(tmp_path / f"{number}.png")
    unlabelled = datasets.load(tmp_path)
    alone = PhotoMasker("zero").read(vit, unlabelled, unlabelled.list_names())
    found = measure_quality(vit, vit, alone, LabelMapping(), PLAN)
    assert (found["model whole"], found["labelled"], found["checked"]) == (1, 0, 3)


def test_others_than_the_judged_are_learned_from_if_there_are_enough(photos, monkeypatch):
    dataset = datasets.load(photos)
    judged = dataset.list_names()[:4]
    assert set(judged) < set(choose_samples(dataset, judged, seed=0))
    monkeypatch.setattr(fine_tuning, "_ENOUGH", 5)
    chosen = choose_samples(dataset, judged, seed=0)
    assert set(chosen) == {*dataset.list_names()} - {*judged}
