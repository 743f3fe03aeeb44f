"""Attributions in Captum's form, judged by Captum's own metrics."""

import pytest
import torch
from torch import nn

from tests.zoo import HandWrittenViT, make_images
from whence import Explainer, WhenceError
from whence.captum import WhenceAttribution

pytest.importorskip("captum")


class Reader(nn.Module):
    """A small text model that takes embeddings, and a mask beside them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, embeddings, scale):
        mixed = embeddings + self.attention(embeddings, embeddings, embeddings)[0]
        return self.head(mixed[:, 0]) * scale


def test_sums_are_those_of_the_scores():
    model, images = HandWrittenViT(), make_images(32, 32)
    expected = Explainer(model).explain(images, target=1, method="tiba")
    found = WhenceAttribution(model, method="tiba").attribute(images, target=1)
    assert found.shape == images.shape
    patches = found.unfold(2, 8, 8).unfold(3, 8, 8)  # (batch, channels, 4, 4, 8, 8)
    assert torch.allclose(patches.sum((1, 4, 5)).flatten(1), expected.scores, atol=1e-6)
    assert torch.allclose(patches.std((1, 4, 5)), torch.zeros(1), atol=1e-9)


def test_it_agrees_with_captum_where_both_have_the_method():
    from captum.attr import InputXGradient

    model, images = HandWrittenViT().double(), make_images(32, 32).double()
    target = torch.tensor([1, 2, 0])
    theirs = InputXGradient(model).attribute(images, target=target)
    ours = WhenceAttribution(model, method="input_x_gradient").attribute(images, target=target)
    summed = theirs.unfold(2, 8, 8).unfold(3, 8, 8).sum((1, 4, 5))
    assert torch.allclose(ours.unfold(2, 8, 8).unfold(3, 8, 8).sum((1, 4, 5)), summed)


def test_captums_metrics_run_on_it():
    from captum.metrics import infidelity, sensitivity_max

    model, images = HandWrittenViT(), make_images(32, 32)
    attribution = WhenceAttribution(model, method="input_x_gradient")
    shift = torch.linspace(-0.02, 0.02, images[0].numel()).reshape(images[0].shape)
    worst = sensitivity_max(
        attribution.attribute, images, lambda x: x + shift, n_perturb_samples=1, target=1
    )
    plain = attribution.attribute(images, target=1).flatten(1)
    moved = attribution.attribute(images + shift, target=1).flatten(1)
    expected = (moved - plain).norm(dim=1) / plain.norm(dim=1)
    assert torch.allclose(worst, expected, rtol=1e-4)

    def halve(x):
        return 0.5 * x, 0.5 * x

    found = infidelity(model, halve, images, plain.reshape(images.shape), target=1)
    change = model(images)[:, 1] - model(0.5 * images)[:, 1]
    expected = ((0.5 * images * plain.reshape(images.shape)).flatten(1).sum(1) - change) ** 2
    assert torch.allclose(found, expected, rtol=1e-3)


def test_embeddings_and_arguments_beside_them():
    model, embeddings, scale = Reader().eval(), torch.randn(2, 5, 16), torch.tensor(2.0)
    attribution = WhenceAttribution(model, method="gradient")
    found = attribution.attribute(embeddings, target=1, additional_forward_args=scale)
    inputs = {"embeddings": embeddings, "scale": scale}
    scores = Explainer(model).explain(inputs, target=1, method="gradient", of="embeddings").scores
    assert found.shape == embeddings.shape
    assert torch.allclose(found.sum(-1), scores, rtol=1e-4)
    (again,) = attribution.attribute((embeddings,), 1, (scale,))
    assert torch.equal(again, found)


def test_what_has_no_such_form():
    attribution = WhenceAttribution(Explainer(HandWrittenViT()))
    images = make_images(32, 32)
    with pytest.raises(WhenceError, match="give `target`, not `classes`"):
        attribution.attribute(images, classes=2)
    with pytest.raises(WhenceError, match="takes 1 inputs, and got 2"):
        attribution.attribute(images, 1, torch.zeros(1))
    for wrong in ("x", [images], ()):
        with pytest.raises(WhenceError, match="inputs are a tensor, or a tuple of tensors"):
            attribution.attribute(wrong, 1)
