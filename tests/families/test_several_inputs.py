"""Models with pixels and words: `of` says which of them gets scores."""

import pytest
import torch

from tests.families.formulas import sum_patches
from tests.families.models import build_transformers, make_ids, make_pixels, replace_embeddings
from whence import Explainer

VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 16,
    "patch_size": 8,
}
TEXT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "eos_token_id": 39,
    "bos_token_id": 38,
    "pad_token_id": 37,
}


def check_pixels(found, logit, leaf):
    (gradient,) = torch.autograd.grad(logit, leaf, retain_graph=True)
    expected = torch.stack([sum_patches(one) for one in (gradient * leaf).detach()])
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7 * float(expected.abs().max()))


def check_words(found, logit, leaf):
    (gradient,) = torch.autograd.grad(logit, leaf, retain_graph=True)
    expected = (gradient * leaf).sum(-1).detach()
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7 * float(expected.abs().max()))


def make_words(texts: int) -> torch.Tensor:
    ids = make_ids(texts, 6).clamp(max=36)
    ids[:, -1] = 39
    return ids


@pytest.mark.parametrize("texts", [2, 3])
@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_two_towers(family, texts):
    """Index t is text t where pixels are explained, and image t where words are."""
    config = {"text_config": TEXT, "vision_config": VISION}
    config |= {"projection_dim": 8} if family == "CLIP" else {}
    model = build_transformers(f"{family}Model", f"{family}Config", **config)
    inputs = {"input_ids": make_words(texts), "pixel_values": make_pixels(2, 3, 16, 16)}
    explainer = Explainer(model)
    by_image = explainer.explain(inputs, 1, method="input_x_gradient", of="pixel_values")
    by_text = explainer.explain(inputs, 1, method="input_x_gradient", of="input_ids")
    leaf = inputs["pixel_values"].clone().requires_grad_()
    output = model(input_ids=inputs["input_ids"], pixel_values=leaf)
    assert torch.allclose(by_image.logits, output.logits_per_image, rtol=1e-6)
    assert torch.allclose(by_text.logits, output.logits_per_text, rtol=1e-6)
    check_pixels(by_image.scores, output.logits_per_image[:, 1].sum(), leaf)
    assert by_image.grid == (2, 2)
    with replace_embeddings(model.text_model) as leaves:
        logits = model(**inputs).logits_per_text
    check_words(by_text.scores, logits[:, 1].sum(), leaves[0])


def test_detection_by_words():
    """OWL-ViT: a class is a text; `output` chooses a box."""
    model = build_transformers(
        "OwlViTForObjectDetection",
        "OwlViTConfig",
        text_config=TEXT,
        vision_config=VISION,
        projection_dim=16,
    )
    pixels, ids = make_pixels(2, 3, 16, 16), make_words(4)
    inputs = {"input_ids": ids, "pixel_values": pixels}
    explainer = Explainer(model, output=lambda returned: returned.logits[:, 2])
    result = explainer.explain(inputs, 1, method="input_x_gradient", of="pixel_values")
    leaf = pixels.clone().requires_grad_()
    logits = model(input_ids=ids, pixel_values=leaf).logits[:, 2]
    assert torch.allclose(result.logits, logits, rtol=1e-6)
    check_pixels(result.scores, logits[:, 1].sum(), leaf)


def _build_llava():
    text = {**TEXT, "model_type": "llama", "max_position_embeddings": 32}
    return build_transformers(
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        text_config=text,
        vision_config={**VISION, "model_type": "clip_vision_model"},
        image_token_id=5,
        image_token_index=5,
        vision_feature_layer=-2,
    )


def _make_llava_inputs():
    ids = make_ids(2, 9).clamp(min=6, max=36)
    ids[:, 1:5] = 5
    return {"input_ids": ids, "pixel_values": make_pixels(2, 3, 16, 16)}


def test_llava_at_the_input():
    """Placeholders for patches are overwritten: pixels explain these, ids the rest."""
    model, inputs = _build_llava(), _make_llava_inputs()
    explainer = Explainer(model, output=lambda returned: returned.logits[:, -1])
    kind = {"method": "input_x_gradient"}
    pixels = explainer.explain(inputs, 1, of="pixel_values", **kind)
    words = explainer.explain(inputs, 1, of="input_ids", **kind)
    leaf = inputs["pixel_values"].clone().requires_grad_()
    logits = model(input_ids=inputs["input_ids"], pixel_values=leaf).logits[:, -1]
    assert torch.allclose(pixels.logits, logits, rtol=1e-6)
    check_pixels(pixels.scores, logits[:, 1].sum(), leaf)
    with replace_embeddings(model) as leaves:
        logit = model(**inputs).logits[:, -1, 1].sum()
    (gradient,) = torch.autograd.grad(logit, leaves[0])
    expected = (gradient * leaves[0]).sum(-1).detach()
    assert torch.allclose(words.scores, expected, rtol=1e-5, atol=1e-9)
    both = explainer.explain(inputs, 1, of=["input_ids", "pixel_values"], **kind)
    assert torch.allclose(both["pixel_values"].scores, pixels.scores)
    assert torch.allclose(both["input_ids"].scores, words.scores)
