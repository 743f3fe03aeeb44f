"""Methods that need only the input: on any differentiable model, with attention or without."""

import pytest
import torch

from tests.families.models import (
    HEADS,
    TEXT,
    build_transformers,
    make_ids,
    make_pixels,
    replace_embeddings,
)
from whence import Explainer, WhenceError

IMAGES = {
    "ConvNext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "Swin": {
        "embed_dim": 8,
        "depths": [2, 2],
        "num_heads": [1, 2],
        "window_size": 2,
        "patch_size": 4,
        "image_size": 32,
    },
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
}
TEXTS = {
    "Mamba": (
        "MambaForCausalLM",
        {"vocab_size": 40, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2},
    ),
    "Longformer": (
        "LongformerForSequenceClassification",
        {**TEXT, "num_attention_heads": HEADS, "attention_window": 4, "pad_token_id": 1},
    ),
}
FAST = {"smoothgrad": {"samples": 3}, "integrated_gradients": {"steps": 64}, "rise": {"masks": 12}}
METHODS = (
    "gradient",
    "input_x_gradient",
    "integrated_gradients",
    "smoothgrad",
    "occlusion",
    "rise",
)


def _build_images(family):
    model = build_transformers(
        f"{family}ForImageClassification", f"{family}Config", **IMAGES[family], num_labels=4
    )
    return model, make_pixels(2, 3, 32, 32)


@pytest.mark.parametrize("family", IMAGES)
def test_pixels_are_counted_once(family):
    model, pixels = _build_images(family)
    explainer, inputs = Explainer(model), {"pixel_values": pixels}
    result = explainer.explain(inputs, 1, method="input_x_gradient")
    leaf = pixels.clone().requires_grad_()
    logits = model(leaf).logits
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), leaf)
    rows, columns = result.grid
    cells = (gradient * pixels).sum(1).reshape(2, rows, 32 // rows, columns, 32 // columns)
    assert torch.allclose(result.scores, cells.sum((2, 4)).flatten(1), rtol=1e-5, atol=1e-9)
    assert torch.allclose(result.logits, logits, rtol=1e-6)
    paths = explainer.explain(inputs, 1, method="integrated_gradients", steps=200)
    change = (logits - model(torch.zeros_like(pixels)).logits)[:, 1]
    assert torch.allclose(paths.scores.sum(-1), change, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("family", IMAGES)
@pytest.mark.parametrize("method", METHODS)
def test_images(family, method):
    model, pixels = _build_images(family)
    result = Explainer(model).explain(
        {"pixel_values": pixels}, 1, method=method, **FAST.get(method, {})
    )
    assert result.scores.shape == (2, result.grid[0] * result.grid[1])
    assert result.scores.isfinite().all()
    assert (result.scores.std(-1) > 0).all()


@pytest.mark.parametrize("family", TEXTS)
def test_words(family):
    name, sizes = TEXTS[family]
    model = build_transformers(name, f"{family}Config", **sizes)
    ids = make_ids(2, 8)

    def read(returned):
        return returned.logits[:, -1] if family == "Mamba" else returned.logits

    explainer, inputs = Explainer(model, output=read), {"input_ids": ids}
    with replace_embeddings(model) as leaves:
        logits = read(model(ids))
    (leaf,) = leaves
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), leaf)
    found = explainer.explain(inputs, 1, method="input_x_gradient").scores
    expected = (gradient * leaf).sum(-1).detach()
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-9)
    for method in METHODS:
        scores = explainer.explain(inputs, 1, method=method, **FAST.get(method, {})).scores
        assert scores.shape == ids.shape
        assert (scores.std(-1) > 0).all()


def test_methods_of_attention_refuse():
    model, pixels = _build_images("ConvNext")
    for method in ("rollout", "tiba", "gae", "whence"):
        with pytest.raises(WhenceError):
            Explainer(model).explain({"pixel_values": pixels}, 1, method=method)
