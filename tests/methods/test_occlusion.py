import pytest
import torch
from captum.attr import FeatureAblation
from captum.attr import Occlusion as Reference

from tests.methods.plain_models import (
    IMAGES,
    PATCH,
    add_padding,
    build_constant_model,
    build_image_model,
    build_text_model,
    relative_error,
    split_patches,
)
from tests.zoo import make_images, select_samples
from whence import Explainer, WhenceError

CLASSES = [0, 2]
METHOD = {"method": "occlusion"}


def wrap_output(forward, output):
    """The model as a function to logits or probabilities."""
    if output == "logit":
        return forward
    return lambda *arguments: forward(*arguments).softmax(1)


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("name", IMAGES)
def test_image(name, window):
    plain = build_image_model(name)
    result = Explainer(plain.model).explain(
        plain.batch, classes=CLASSES, window=window, baseline=0.3, **METHOD
    )
    for i, target in enumerate(CLASSES):
        of_pixels = Reference(plain.forward).attribute(
            plain.inputs,
            sliding_window_shapes=(3, window * PATCH, window * PATCH),
            strides=(3, PATCH, PATCH),
            baselines=0.3,
            target=target,
            perturbations_per_eval=8,
        )
        # Captum gives every pixel of a patch, in each channel, the same.
        of_patches = split_patches(of_pixels)
        assert relative_error(of_patches, of_patches[:, :1, :, :1].expand_as(of_patches)) < 1e-12
        # It keeps them in single precision.
        assert relative_error(result.scores[:, i], of_patches[:, 0, :, 0]) < 1e-6


@pytest.mark.parametrize("output", ["logit", "probability"])
def test_text(output):
    plain = build_text_model()
    result = Explainer(plain.model).explain(plain.batch, classes=CLASSES, output=output, **METHOD)
    tokens = torch.arange(10)[None, :, None].expand(1, -1, 32)
    for i, target in enumerate(CLASSES):
        ablation = FeatureAblation(wrap_output(plain.forward, output)).attribute(
            plain.inputs,
            target=target,
            additional_forward_args=plain.arguments,
            feature_mask=tokens,
        )
        expected = ablation[..., 0] * plain.batch["attention_mask"]
        assert relative_error(result.scores[:, i], expected) < 1e-9


def test_padding_is_skipped_and_changes_nothing():
    plain = build_text_model()
    explainer = Explainer(plain.model)
    whole = explainer.explain(plain.batch, 1, **METHOD).scores
    longer = explainer.explain(add_padding(plain.batch), 1, **METHOD).scores
    assert relative_error(longer[:, :10], whole) < 1e-9
    for index in range(3):
        alone = explainer.explain(select_samples(plain.batch, slice(index, index + 1)), 1, **METHOD)
        assert relative_error(alone.scores[0], whole[index]) < 1e-9
    narrow = explainer.explain(plain.batch, 1, memory=1e-9, **METHOD).scores
    assert relative_error(narrow, whole) < 1e-9


class OneLogit(torch.nn.Module):
    """A yes or no of a single logit."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels):
        return self.model(pixels)[:, :1]


def test_a_single_logit_has_no_probability():
    plain = build_image_model(IMAGES[0])
    model = OneLogit(plain.model)
    result = Explainer(model).explain(plain.batch, 0, output="probability", **METHOD)
    covered = plain.inputs.clone()
    covered[..., :PATCH, PATCH : 2 * PATCH] = 0
    expected = model(plain.inputs) - model(covered)
    assert relative_error(result.scores[:, 1], expected[:, 0]) < 1e-9


def test_degenerate_input_gives_zeros():
    unmoving = Explainer(build_constant_model()).explain(
        make_images(32, 32), classes=[0, 1], **METHOD
    )
    assert torch.equal(unmoving.scores, torch.zeros(3, 2, 16))
    plain = build_image_model(IMAGES[0])
    empty = Explainer(plain.model).explain(plain.inputs * 0, **METHOD)
    assert empty.scores.abs().max() < 1e-12


def test_a_text_of_one_token():
    plain = build_text_model()
    one = {"input_ids": torch.tensor([[7]]), "attention_mask": torch.ones(1, 1, dtype=torch.long)}
    result = Explainer(plain.model).explain(one, 1, **METHOD)
    embedding = plain.model.get_input_embeddings()(one["input_ids"])
    mask = one["attention_mask"]
    drop = plain.forward(embedding, mask) - plain.forward(embedding * 0, mask)
    assert relative_error(result.scores[0], drop[0, 1:2]) < 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window=0 must be at least 1"),
        ({"window": 5}, "window=5 is larger than the grid of 4x4 patches"),
        ({"output": "loss"}, "'output' .* must be 'logit' or 'probability', not 'loss'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(build_constant_model()).explain(make_images(32, 32), **METHOD, **options)


def test_windows_are_for_images():
    plain = build_text_model()
    with pytest.raises(WhenceError, match="window=2 is for images; texts are covered token by"):
        Explainer(plain.model).explain(plain.batch, window=2, **METHOD)
