import json

import numpy as np
import pytest
import torch

from tests.paths import PATHS, explain_on
from tests.test_golden import CLASS_TOKEN, TAGS, list_targets, load_small_model, read_golden
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, WhenceError


def scale(scores) -> np.ndarray:
    scores = np.asarray(scores)
    spread = scores.max() - scores.min()
    return (scores - scores.min()) / spread if spread else np.zeros_like(scores)


def compute_by_formula(attention, gradient, read, prefix) -> torch.Tensor:
    """Scores of one sample from its heads' maps, (heads, tokens, tokens), head by head."""
    total = torch.zeros_like(attention[0])
    for head, slope in zip(attention, gradient, strict=True):
        total += slope[:, prefix:].mean() * head
    return (total / len(attention)).clamp(min=0)[read].mean(0)[prefix:]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["vit_a", "vit_b", "bert_a", "bert_b"])
def test_the_authors_results(name, path):
    data = read_golden(name)
    model, inputs = load_small_model(name)
    result = explain_on(path, model, inputs, classes=list_targets(name), method="attention_gradcam")
    is_text = name.startswith("bert")
    compared = undefined = 0
    for i, scores in enumerate(result.scores):
        if is_text and not data["attention_mask"][i].all():
            continue  # the authors count the gradient of padding
        for column, tag in enumerate(TAGS):
            theirs = data[f"{i}/{tag}/attention_gradcam"]
            ours = scores[column].numpy()
            if not np.isfinite(theirs).all():
                assert not ours.any()
                undefined += 1
            elif is_text:  # scaled with other rows' scores, and the class token set to 0
                assert np.allclose(scale(ours[1:]), scale(theirs[1:]), atol=1e-9)
            else:
                assert np.allclose(scale(ours), theirs, atol=1e-9)
            compared += 1
    assert compared == {"vit_a": 6, "vit_b": 4, "bert_a": 2, "bert_b": 4}[name]
    assert undefined == (2 if name == "vit_a" else 0)


def test_padding_does_not_count():
    """The authors' maps and gradients of padded texts, cut to the real tokens."""
    data = read_golden("bert_a")
    model, inputs = load_small_model("bert_a")
    result = Explainer(model, layout=CLASS_TOKEN).explain(
        inputs, classes=list_targets("bert_a"), method="attention_gradcam"
    )
    last = json.loads(str(data["meta"]))["num_hidden_layers"] - 1
    seen = False
    for i, length in enumerate(data["attention_mask"].sum(1).tolist()):
        for column, tag in enumerate(TAGS):
            attention, gradient = (
                torch.from_numpy(data[f"{i}/{tag}/block{last}/{kind}"])[:, :length, :length]
                for kind in ("attention", "gradient")
            )
            expected = compute_by_formula(attention, gradient, [0], 0)
            scores = result.scores[i, column]
            assert torch.allclose(scores[1:length], expected[1:], rtol=1e-8, atol=1e-16)
            assert scores[0] == scores[1:length].min()
            assert not scores[length:].any()
            seen |= length < len(scores) and bool(scores.any())
    assert seen


@pytest.mark.parametrize("layer", [-1, 1])
@pytest.mark.parametrize("name", ["timm-vit-registers-fused", "timm-vit-average-fused"])
def test_images(name, layer):
    case = CASES[name]
    result = Explainer(build_model(case).double()).explain(
        case.inputs().double(),
        classes=3,
        method="attention_gradcam",
        layer=layer,
        keep_evidence=True,
    )
    evidence = result.evidence
    for i in range(3):
        for k in range(3):
            expected = compute_by_formula(
                evidence.attention[layer][i],
                evidence.gradient[layer][i, k],
                list(case.pooled),
                case.prefix,
            )
            assert torch.allclose(result.scores[i, k], expected, rtol=1e-9, atol=1e-15)
    assert result.scores.any()


def test_balanced_gradients_give_other_scores():
    explainer, pixels = Explainer(HandWrittenViT()), make_images(32, 32)
    plain, balanced = (
        explainer.explain(pixels, method="attention_gradcam", gradients=gradients).scores
        for gradients in ("plain", "balanced")
    )
    assert not torch.allclose(plain, balanced)


def test_texts_in_a_batch_and_alone():
    explainer, inputs = Explainer(build_model(CASES["Roberta-sdpa"]).double()), make_texts()
    result = explainer.explain(inputs, classes=[0, 1, 2], method="attention_gradcam", layer=0)
    assert result.scores.any()
    for i, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        alone = {key: value[i : i + 1, :length] for key, value in inputs.items()}
        expected = explainer.explain(alone, classes=[0, 1, 2], method="attention_gradcam", layer=0)
        assert torch.allclose(result.scores[i, :, :length], expected.scores[0], rtol=1e-8)


def test_a_constant_logit_gives_zeros():
    model = HandWrittenViT()
    with torch.no_grad():
        model.head.weight.zero_()
    scores = Explainer(model).explain(make_images(32, 32), method="attention_gradcam").scores
    assert torch.equal(scores, torch.zeros(3, 16))


def test_a_layer_that_does_not_exist():
    with pytest.raises(WhenceError, match="layer=7 does not exist"):
        Explainer(HandWrittenViT()).explain(
            make_images(32, 32), method="attention_gradcam", layer=7
        )
