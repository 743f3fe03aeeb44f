import pytest
import torch
from captum.attr import LayerGradCam
from torch import nn

from tests.methods.plain_models import (
    build_constant_model,
    build_image_model,
    build_text_model,
    relative_error,
)
from tests.zoo import make_images
from whence import Explainer, WhenceError

CLASSES = [0, 2]


class Turned(nn.Module):
    """Channels in front of tokens, where Captum expects them; and back again."""

    def forward(self, x):
        return x.transpose(1, 2).contiguous()


def wrap_for_captum(model, layer):
    """A place in front of an attention whose output is (batch, channels, tokens)."""
    block = model.blocks[layer]
    turned = Turned()
    block.norm1 = nn.Sequential(block.norm1, turned, Turned())
    return turned


@pytest.mark.parametrize("layer", [-1, 0])
def test_average_pooling_equals_captum(layer):
    plain = build_image_model("timm-vit-average-fused")
    result = Explainer(plain.model).explain(
        plain.batch, classes=CLASSES, method="gradcam", layer=layer
    )
    reference = LayerGradCam(plain.model, wrap_for_captum(plain.model, layer))
    for i, target in enumerate(CLASSES):
        pixels = plain.inputs.clone().requires_grad_()
        expected = reference.attribute(pixels, target=target, relu_attributions=True)
        assert relative_error(result.scores[:, i], expected[:, 0]) < 1e-9
    assert result.scores.max() > 0


def compute_by_formula(features, gradient, counted):
    """Score by score, over the tokens that count of one sample."""
    weights = sum(gradient[t] for t in counted) / len(counted)
    return torch.stack([torch.clamp((weights * features[t]).sum(), min=0) for t in counted])


@pytest.mark.parametrize("name", ["timm-vit-fused", "timm-vit-registers-fused"])
def test_prefix_tokens_are_left_out(name):
    plain = build_image_model(name)
    result = Explainer(plain.model).explain(plain.batch, classes=CLASSES, method="gradcam", layer=1)
    place, kept = plain.model.blocks[1].norm1, []
    place.register_forward_hook(lambda _m, _a, output: kept.append(output))
    logits = plain.model(plain.inputs.clone().requires_grad_())
    prefix = kept[0].shape[1] - 16
    for i, target in enumerate(CLASSES):
        gradient = torch.autograd.grad(logits[:, target].sum(), kept[0], retain_graph=True)[0]
        for sample in range(3):
            expected = compute_by_formula(
                kept[0][sample], gradient[sample], list(range(prefix, prefix + 16))
            )
            assert relative_error(result.scores[sample, i], expected) < 1e-9


def test_text_is_weighted_by_its_real_tokens():
    plain = build_text_model()
    result = Explainer(plain.model).explain(plain.batch, classes=CLASSES, method="gradcam")
    kept = []
    plain.model.bert.encoder.layer[-1].attention.self.value.register_forward_pre_hook(
        lambda _m, args: kept.append(args[0])
    )
    logits = plain.model.requires_grad_()(**plain.batch).logits
    for i, target in enumerate(CLASSES):
        gradient = torch.autograd.grad(logits[:, target].sum(), kept[0], retain_graph=True)[0]
        for sample, length in enumerate(plain.batch["attention_mask"].sum(1).tolist()):
            expected = compute_by_formula(kept[0][sample], gradient[sample], list(range(length)))
            assert relative_error(result.scores[sample, i, :length], expected) < 1e-9
            assert result.scores[sample, i, length:].eq(0).all()


def test_balanced_gradients_give_other_scores():
    plain = build_image_model("timm-vit-fused")
    options = {"target": 1, "method": "gradcam", "keep_evidence": True}
    balanced = Explainer(plain.model).explain(plain.batch, gradients="balanced", **options)
    evidence = balanced.evidence
    for sample in range(3):
        expected = compute_by_formula(
            evidence.value_input[-1][sample],
            evidence.value_input_gradient[-1][sample],
            list(range(1, 17)),
        )
        assert relative_error(balanced.scores[sample], expected) < 1e-9
    usual = Explainer(plain.model).explain(plain.batch, **options)
    assert relative_error(balanced.scores, usual.scores) > 0.01


@pytest.mark.parametrize("layer", [3, -4])
def test_a_layer_that_does_not_exist(layer):
    message = rf"layer={layer} does not exist: the model has 3 attention layers, 0 to 2, or -3 to"
    with pytest.raises(WhenceError, match=message):
        Explainer(build_constant_model()).explain(
            make_images(32, 32), method="gradcam", layer=layer
        )


def test_a_constant_logit_gives_zeros():
    result = Explainer(build_constant_model()).explain(
        make_images(32, 32), classes=[0, 1], method="gradcam"
    )
    assert torch.equal(result.scores, torch.zeros(3, 2, 16))


def test_a_text_of_one_token_is_finite():
    plain = build_text_model()
    one = {"input_ids": torch.tensor([[7]]), "attention_mask": torch.ones(1, 1, dtype=torch.long)}
    result = Explainer(plain.model).explain(one, method="gradcam")
    assert result.scores.shape == (1, 1)
    assert result.scores.isfinite().all()
