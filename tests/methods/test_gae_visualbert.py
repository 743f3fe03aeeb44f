"""GAE and its baselines on VisualBERT, one sequence of words and boxes, against the authors'."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.multimodal import (
    TAGS,
    compute_error,
    load_model,
    read_multimodal,
    read_sample,
    read_sizes,
)
from whence import Explainer

OF = ["input_ids", "visual_embeds"]
MODELS = ("visualbert_a", "visualbert_b")


@pytest.fixture(params=MODELS)
def model(request) -> str:
    return request.param


def compare(model: str, entry: str, **options: Any) -> float:
    """The largest error of scores of words and boxes; the authors have them in one vector.

    The token that is read, the one before ``[SEP]``, is left out: the authors set it to 0, and ours
    has what it keeps of itself.
    """
    data, explainer, errors = read_multimodal(model), Explainer(load_model(model)), []
    for i in range(2):
        inputs, read = read_sample(model, i), int(data[f"{i}/cls_index"])
        words = inputs["attention_mask"][0].bool()
        classes = [int(data[f"{i}/{tag}/target"]) for tag in TAGS]
        result = explainer.explain(inputs, classes=classes, of=OF, **options)
        of_words, of_boxes = (result[name].scores[0] for name in OF)
        assert not of_words[:, ~words].any()
        ours = torch.cat([of_words[:, words], of_boxes], 1)
        others = torch.arange(ours.shape[1]) != read
        for column, tag in enumerate(TAGS):
            found, theirs = (x[others] for x in (ours[column], _read(data, f"{i}/{tag}/{entry}")))
            errors.append(compute_error(found, theirs))
    return max(errors)


def _read(data, name: str) -> Tensor:
    return torch.from_numpy(data[name])


def test_scores(model):
    assert compare(model, "ours", method="gae") < 1e-8


def test_one_input_at_a_time(model):
    inputs, explainer = read_sample(model, 1), Explainer(load_model(model))
    both = explainer.explain(inputs, target=0, of=OF, method="gae")
    for of in OF:
        alone = explainer.explain(inputs, target=0, of=of, method="gae")
        assert torch.allclose(alone.scores, both[of].scores, rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("attention", 1e-9), ("gradient", 1e-9), ("relevance", 1e-4)]
)
def test_evidence(model, kind, tolerance):
    """The authors cut padding off first."""
    data, explainer = read_multimodal(model), Explainer(load_model(model))
    for i in range(2):
        inputs = read_sample(model, i)
        real = torch.cat([inputs["attention_mask"], inputs["visual_attention_mask"]], 1)[0].bool()
        classes = [int(data[f"{i}/{tag}/target"]) for tag in TAGS]
        kept = explainer.explain(
            inputs,
            classes=classes,
            of="visual_embeds",
            method="gae",
            contribution="relevance",
            rules="reference",
            keep_evidence=True,
        ).evidence
        for block, values in enumerate(getattr(kept, kind)):
            for column, tag in enumerate(TAGS):
                value = values[0] if kind == "attention" else values[0, column]
                theirs = data[f"{i}/{tag}/block{block}/{kind}"]
                assert compute_error(value[:, real][:, :, real], theirs) < tolerance


@pytest.mark.slow
def test_rollout_and_transformer_attribution_from_every_layer(model):
    for start in range(read_sizes(model)["layers"]):
        options = {"method": "rollout", "normalize_rows": False, "start_layer": start}
        assert compare(model, f"rollout_start{start}", **options) < 1e-8
        options = {"method": "tiba", "rules": "reference", "start_layer": start}
        assert compare(model, f"transformer_attribution_start{start}", **options) < 1e-4


def test_gae_with_relevance_is_transformer_attribution(model):
    options = {"contribution": "relevance", "rules": "reference", "start_layer": -1}
    last = read_sizes(model)["layers"] - 1
    entry = f"transformer_attribution_start{last}"
    assert compare(model, entry, method="gae", **options) < 1e-4


def test_raw_attention(model):
    assert compare(model, "raw_attention", method="raw_attention") < 1e-8


def test_partial_lrp(model):
    """The authors' relevance of the last block; ours leaves out what heads have below zero."""
    data, explainer = read_multimodal(model), Explainer(load_model(model))
    last = read_sizes(model)["layers"] - 1
    for i, tag in ((0, "top"), (1, "low")):
        inputs, read = read_sample(model, i), int(data[f"{i}/cls_index"])
        boxes = inputs["visual_embeds"].shape[1]
        relevance = torch.from_numpy(data[f"{i}/{tag}/block{last}/relevance"])
        expected = relevance.clamp(min=0).mean(0)[read, -boxes:]
        scores = explainer.explain(
            inputs,
            target=int(data[f"{i}/{tag}/target"]),
            of="visual_embeds",
            method="partial_lrp",
            rules="reference",
        ).scores[0]
        assert compute_error(scores, expected) < 1e-4
