import pytest
import torch
from captum.attr import Saliency

from tests.methods.plain_models import (
    IMAGES,
    build_constant_model,
    build_image_model,
    build_text_model,
    relative_error,
    split_patches,
)
from tests.zoo import make_images
from whence import Explainer, WhenceError

CLASSES = [0, 2]


@pytest.mark.parametrize("name", IMAGES)
def test_image(name):
    plain = build_image_model(name)
    result = Explainer(plain.model).explain(plain.batch, classes=CLASSES, method="gradient")
    for i, target in enumerate(CLASSES):
        pixels = plain.inputs.clone().requires_grad_()
        of_pixels = Saliency(plain.forward).attribute(pixels, target=target)
        expected = split_patches(of_pixels.amax(1)).mean(-1)
        assert relative_error(result.scores[:, i], expected) < 1e-9


def test_text():
    plain = build_text_model()
    result = Explainer(plain.model).explain(plain.batch, classes=CLASSES, method="gradient")
    for i, target in enumerate(CLASSES):
        embeddings = plain.inputs.clone().requires_grad_()
        gradient = Saliency(plain.forward).attribute(
            embeddings, target=target, additional_forward_args=plain.arguments, abs=False
        )
        expected = gradient.norm(dim=-1) * plain.batch["attention_mask"]
        assert relative_error(result.scores[:, i], expected) < 1e-9
    assert result.scores[1, :, 6:].eq(0).all()


def test_balanced_gradients_give_other_scores():
    plain = build_text_model()
    explainer = Explainer(plain.model)
    balanced = explainer.explain(plain.batch, 1, method="gradient", gradients="balanced")
    evidence = explainer.explain(
        plain.batch, 1, method="input_x_gradient", gradients="balanced", keep_evidence=True
    ).evidence
    expected = evidence.input_gradient[0].norm(dim=-1) * plain.batch["attention_mask"]
    assert relative_error(balanced.scores, expected) < 1e-12
    plain_scores = explainer.explain(plain.batch, 1, method="saliency").scores
    assert relative_error(balanced.scores, plain_scores) > 0.01


def test_a_constant_logit_gives_zeros():
    result = Explainer(build_constant_model()).explain(make_images(32, 32), method="gradient")
    assert torch.equal(result.scores, torch.zeros(3, 16))


def test_a_wrong_kind_of_gradient():
    with pytest.raises(
        WhenceError, match=r"'gradients' .* must be 'plain' or 'balanced' or 'residual', not 'x'"
    ):
        Explainer(build_constant_model()).explain(
            make_images(32, 32), method="gradient", gradients="x"
        )


def test_segments_of_a_signal():
    class Signal(torch.nn.Module):
        """Pairs of rows are joined to one token."""

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
            self.head = torch.nn.Linear(8, 3)

        def forward(self, signal):
            return self.head(self.layer(signal.reshape(len(signal), -1, 8)).mean(1))

    signal = torch.randn(2, 6, 4)
    model = Signal().eval()
    result = Explainer(model).explain(signal, 1, method="gradient")
    assert result.grid == (3,)
    signal.requires_grad_()
    (gradient,) = torch.autograd.grad(model(signal)[:, 1].sum(), signal)
    expected = gradient.abs().amax(2).reshape(2, 3, 2).mean(2)
    assert torch.allclose(result.scores, expected, rtol=1e-4)
