import copy
import dataclasses

import pytest
import torch

from tests.benchmark.helpers import choose_one, judge, read_samples
from tests.saved import make_photo
from whence.benchmark import build_protocol
from whence.benchmark.protocols.base import explain_batch
from whence.benchmark.shared_explanations import hash_numbers, share_explanations


@pytest.fixture
def counted(vit, monkeypatch):
    """A model, and the batches that it explains."""
    loaded, batches = dataclasses.replace(vit), []
    plain = loaded.explainer.explain

    def explain(inputs, **given):
        batches.append((given["method"], given["target"]))
        return plain(inputs, **given)

    monkeypatch.setattr(loaded.explainer, "explain", explain)
    return loaded, batches


def test_protocols_share_explanations_of_predicted_classes(counted, photos):
    loaded, batches = counted
    samples, method = read_samples(photos, 3), choose_one("gae")
    protocols = [("saco", {}), ("srg", {"fill": "mean"}), ("randomization", {})]
    plain = [judge(build_protocol(*one), loaded, samples, method) for one in protocols]
    alone = batches.count(("gae", None))
    batches.clear()
    with share_explanations(), share_explanations():
        shared = [judge(build_protocol(*one), loaded, samples, method) for one in protocols]
    assert shared == plain
    assert (alone, batches.count(("gae", None))) == (3, 1)
    judge(build_protocol(*protocols[0]), loaded, samples, method)
    assert batches.count(("gae", None)) == 2  # after the block, nothing is kept


def test_other_inputs_methods_options_and_models_are_not_mixed_up(counted, vit):
    loaded, batches = counted
    pixels = torch.randn(2, *vit.prepare([make_photo(9, 9)]).inputs.shape[1:])
    changed = pixels.clone()
    changed[1, 2, 3, 4] += 1e-6
    with share_explanations():
        first = explain_batch(loaded, pixels, choose_one("gae"))
        for inputs, text in (
            (changed, "gae"),
            (pixels.flip(0), "gae"),
            (pixels[:1], "gae"),
            (pixels, "gae:gradients=balanced"),
            (pixels, "tiba"),
            (pixels, "tiba:rules=reference"),
        ):
            explain_batch(loaded, inputs, choose_one(text))
        assert len(batches) == 7
        explain_batch(loaded, pixels, choose_one("gae"), [0, 1])  # of given classes: never shared
        explain_batch(loaded, pixels, choose_one("gae"), [0, 1])
        assert len(batches) == 9
        again = explain_batch(loaded, pixels.clone(), choose_one("gae"))
        assert len(batches) == 9
        assert torch.equal(again.scores, first.scores)
        other = dataclasses.replace(vit, model=copy.deepcopy(vit.model))
        other.model.classifier.weight.data.neg_()
        found = explain_batch(other, pixels, choose_one("gae"))
        assert not torch.equal(found.scores, first.scores)


def test_hashes_tell_tensors_apart():
    values = torch.zeros(2, 3)
    others = [
        torch.zeros(3, 2),
        torch.zeros(2, 3, dtype=torch.float64),
        -values,
        torch.eye(2, 3),
        torch.eye(2, 3).flip(0),
        torch.eye(2, 3).bool(),
        torch.eye(2, 3).half(),
        torch.eye(2, 3).long(),
    ]
    assert len({hash_numbers(one) for one in [values, *others]}) == 9
    assert hash_numbers(values) == hash_numbers(torch.zeros(3, 2).T)
