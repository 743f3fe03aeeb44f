import pytest
import torch
from captum.attr import InputXGradient

from tests.methods.plain_models import (
    IMAGES,
    build_constant_model,
    build_image_model,
    build_text_model,
    relative_error,
    split_patches,
)
from tests.zoo import make_images
from whence import Explainer, Layout

CLASSES = [0, 2]


@pytest.mark.parametrize("name", IMAGES)
def test_image(name):
    plain = build_image_model(name)
    result = Explainer(plain.model).explain(plain.batch, classes=CLASSES, method="input_x_gradient")
    for i, target in enumerate(CLASSES):
        pixels = plain.inputs.clone().requires_grad_()
        of_pixels = InputXGradient(plain.forward).attribute(pixels, target=target)
        expected = split_patches(of_pixels.sum(1)).sum(-1)
        assert relative_error(result.scores[:, i], expected) < 1e-8
    assert result.scores.min() < 0 < result.scores.max()


def test_text():
    plain = build_text_model()
    result = Explainer(plain.model).explain(plain.batch, classes=CLASSES, method="input_x_gradient")
    for i, target in enumerate(CLASSES):
        embeddings = plain.inputs.clone().requires_grad_()
        product = InputXGradient(plain.forward).attribute(
            embeddings, target=target, additional_forward_args=plain.arguments
        )
        expected = product.sum(-1) * plain.batch["attention_mask"]
        assert relative_error(result.scores[:, i], expected) < 1e-8


class Linear(torch.nn.Module):
    """One attention without biases, whose weights are the same for every input."""

    def __init__(self):
        super().__init__()
        self.value = torch.nn.Linear(8, 8, bias=False)
        self.class_token = torch.nn.Parameter(torch.zeros(1, 1, 8))
        self.head = torch.nn.Linear(8, 3, bias=False)

    def forward(self, rows):
        rows = torch.cat([self.class_token.expand(len(rows), -1, -1), rows], 1)
        equal = (rows @ rows.mT) * 0
        return self.head((equal.softmax(-1) @ self.value(rows))[:, 0])


def test_scores_after_a_prefix_token_sum_to_the_logit():
    model, rows = Linear().double(), torch.randn(2, 5, 8).double()
    explainer = Explainer(model, layout=Layout(prefix=1))
    scores = explainer.explain(rows, classes=[0, 1, 2], method="input_x_gradient").scores
    expected = torch.stack([model(rows * (torch.arange(5) == k)[:, None]) for k in range(5)], -1)
    assert scores.shape == (2, 3, 5)
    assert relative_error(scores, expected) < 1e-9


def test_balanced_scores_sum_to_the_logit():
    # Without biases and positions, all of the logit comes from the embeddings.
    plain = build_text_model()
    with torch.no_grad():
        for name, parameter in plain.model.named_parameters():
            if name.endswith("bias") or "position" in name or "token_type" in name:
                parameter.zero_()
    result = Explainer(plain.model).explain(
        plain.batch, classes=CLASSES, method="input_x_gradient", gradients="balanced"
    )
    logits = plain.model(**plain.batch).logits[:, CLASSES]
    assert relative_error(result.scores.sum(-1), logits) < 1e-6


def test_degenerate_input_gives_zeros():
    unmoving = Explainer(build_constant_model()).explain(
        make_images(32, 32), method="input_x_gradient"
    )
    assert torch.equal(unmoving.scores, torch.zeros(3, 16))
    plain = build_image_model(IMAGES[0])
    empty = Explainer(plain.model).explain(plain.inputs * 0, method="input_x_gradient")
    assert torch.equal(empty.scores, torch.zeros(3, 16).double())
