"""GAE on CLIP, against the results of the authors' own code."""

import copy

import pytest
import torch
from torch import Tensor

from tests.multimodal import compute_error, load_model, mark_variants, read_multimodal, read_sizes
from whence import Explainer, WhenceError

STARTS = (1, 0, 2)


def _attend(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    """CLIP's attention without its cast to float32."""
    weights = query @ key.transpose(-1, -2) * scaling
    weights = weights if attention_mask is None else weights + attention_mask
    weights = weights.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


@pytest.fixture
def explainer(monkeypatch) -> Explainer:
    model = load_model("clip_a")
    monkeypatch.setattr("transformers.models.clip.modeling_clip.eager_attention_forward", _attend)
    return Explainer(model)


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    data = read_multimodal("clip_a")
    return {name: torch.from_numpy(data[name]) for name in ("pixel_values", "input_ids")}


def list_rows(ids: Tensor) -> list[int]:
    """The rows of the end of each text, which has the highest number."""
    return ids.argmax(1).tolist()


@pytest.mark.parametrize("start", mark_variants(STARTS))
def test_both_towers_in_one_call(explainer, inputs, start):
    """Every image for every text it is compared with, and the other way round."""
    data, tower = read_multimodal("clip_a"), ["pixel_values", "input_ids"]
    result = explainer.explain(
        inputs, classes=[0, 1], of=tower, method="gae", start_layer=start - 3
    )
    of_images, of_texts = (result[name].scores for name in tower)
    for text, row in enumerate(list_rows(inputs["input_ids"])):
        for image in range(2):
            whole = data[f"{image}/{text}/text_relevance_start{start}"]
            assert compute_error(of_texts[text, image], whole[row]) < 1e-8
            if text < 2:
                expected = data[f"{image}/{text}/image_relevance_start{start}"]
                assert compute_error(of_images[image, text], expected) < 1e-8


@pytest.mark.parametrize("start", mark_variants(STARTS))
def test_the_last_text(explainer, inputs, start):
    data = read_multimodal("clip_a")
    of = {"of": "pixel_values", "method": "gae", "start_layer": start}
    result = explainer.explain(inputs, target=2, **of)
    for image, scores in enumerate(result.scores):
        assert compute_error(scores, data[f"{image}/2/image_relevance_start{start}"]) < 1e-8


@pytest.mark.parametrize("start", mark_variants(STARTS))
def test_words_between_start_and_end(explainer, inputs, start):
    """What the notebook shows of a text: its words, divided by their sum."""
    data, of = read_multimodal("clip_a"), {"of": "input_ids", "method": "gae"}
    scores = explainer.explain(inputs, target=1, start_layer=start, **of).scores
    for text, row in enumerate(list_rows(inputs["input_ids"])):
        words = scores[text, 1:row]
        expected = data[f"1/{text}/text_scores_start{start}"]
        assert compute_error(words / words.sum(), expected) < 1e-8


@pytest.mark.parametrize(("of", "tower"), [("pixel_values", "vision"), ("input_ids", "text")])
def test_attention_and_gradients(explainer, inputs, of, tower):
    data, is_text = read_multimodal("clip_a"), of == "input_ids"
    classes = [0, 1] if is_text else [0, 1, 2]
    kept = explainer.explain(
        inputs, classes=classes, of=of, method="gae", keep_evidence=True
    ).evidence
    compared = 0
    for block in range(read_sizes("clip_a")[f"{tower}_layers"]):
        for image in range(2):
            for text in range(3):
                sample, column = (text, image) if is_text else (image, text)
                name = f"{image}/{text}/{tower}/block{block}"
                attention, gradient = kept.attention[block], kept.gradient[block]
                assert compute_error(attention[sample], data[f"{name}/attention"]) < 1e-9
                assert compute_error(gradient[sample, column], data[f"{name}/gradient"]) < 1e-9
                compared += 1
    assert compared == 18


def test_the_model_as_it_is(inputs):
    """transformers casts the softmax to float32."""
    data = read_multimodal("clip_a")
    scores = Explainer(load_model("clip_a")).explain(
        inputs, classes=[0, 1, 2], of="pixel_values", method="gae", start_layer=-1
    )
    for image in range(2):
        for text in range(3):
            expected = data[f"{image}/{text}/image_relevance_start2"]
            assert compute_error(scores.scores[image, text], expected) < 1e-5


def test_fused_attention(inputs):
    model, data = copy.deepcopy(load_model("clip_a")), read_multimodal("clip_a")
    model.set_attn_implementation("sdpa")
    result = Explainer(model).explain(inputs, target=2, of="pixel_values", method="gae")
    for image, scores in enumerate(result.scores):
        assert compute_error(scores, data[f"{image}/2/image_relevance_start0"]) < 1e-8


@pytest.mark.parametrize("start", [3, -4])
def test_a_start_that_does_not_exist(explainer, inputs, start):
    with pytest.raises(WhenceError, match=r"start_layer=-?\d does not exist: the model has 3"):
        explainer.explain(inputs, target=0, of="input_ids", method="gae", start_layer=start)
