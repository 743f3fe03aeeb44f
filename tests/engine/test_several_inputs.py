"""Inputs that attend to each other get the scores that each gets alone."""

import pytest
import torch

from tests.multimodal import load_model, read_sample
from whence import Explainer

OF = ["input_ids", "visual_feats"]


@pytest.mark.parametrize(
    "method", ["whence", *(pytest.param(m, marks=pytest.mark.slow) for m in ("tiba", "rollout"))]
)
def test_question_and_boxes_of_lxmert(method):
    explainer, inputs = Explainer(load_model("lxmert_a")), read_sample("lxmert_a", 0)
    both = explainer.explain(inputs, target=1, of=OF, method=method)
    for name in OF:
        alone = explainer.explain(inputs, target=1, of=name, method=method)
        assert torch.equal(both[name].scores, alone.scores)
        assert torch.equal(both[name].logits, alone.logits)
        assert both[name].scores.any()


def test_words_and_boxes_of_one_sequence_share_a_pass(monkeypatch):
    from whence.engine import eager

    passes, record = [], eager.record_request
    monkeypatch.setattr(eager, "record_request", lambda *a: passes.append(a) or record(*a))
    inputs = read_sample("visualbert_b", 0)
    result = Explainer(load_model("visualbert_b")).explain(
        inputs, target=1, of=["input_ids", "visual_embeds"], method="gae"
    )
    assert len(passes) == 1
    assert len(result["visual_embeds"].scores[0]) == inputs["visual_embeds"].shape[1]
