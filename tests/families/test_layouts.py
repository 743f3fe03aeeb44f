"""Where units lie: detection tokens, frames, spectrograms, grids that do not divide the image."""

from functools import partial

import pytest
import torch

from tests.families.formulas import Plain, center
from tests.families.models import (
    build_transformers,
    check_scores,
    copy_eager,
    enlarge_weights,
    make_pixels,
)
from tests.families.places import order_by_place
from whence import Explainer

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_labels": 4,
}


def run(eager, one, read_logit, read, axes, sum_to_units, name="pixel_values") -> Plain:
    """Run a model on one sample; its units are in reading order on some axes of the input."""
    leaf = one.clone().requires_grad_()
    output = eager(**{name: leaf}, output_attentions=True, output_hidden_states=True)
    hidden = list(output.hidden_states[: len(output.attentions)])
    units = order_by_place(hidden[0], leaf, axes)
    return Plain(
        logit=read_logit(output),
        centered=read_logit(center(output)),
        maps=list(output.attentions),
        hidden=hidden,
        inputs=leaf,
        read=read if read else dict.fromkeys(units, 1 / len(units)),
        units=units,
        sum_to_units=sum_to_units,
        is_image=True,
        keeps_identity=False,
    )


def sum_cells(product, axes, sides):
    """Sum one sample's values over cells of some axes, one by one, in reading order."""
    for axis in sorted(set(range(product.dim())) - set(axes), reverse=True):
        product = product.sum(axis)
    order = sorted(range(len(axes)), key=axes.__getitem__)
    cells = product
    for axis, side in zip(order, sides, strict=True):
        cells = cells.unflatten(2 * axis, (-1, side))
    return cells.sum(tuple(range(1, 2 * len(axes), 2))).flatten()


def test_detection_tokens_are_no_patches():
    """YOLOS: the token of a query is read; patches stand between it and the class token."""
    model = build_transformers(
        "YolosForObjectDetection",
        "YolosConfig",
        **SIZES,
        image_size=[16, 24],
        patch_size=8,
        num_detection_tokens=3,
        use_mid_position_embeddings=False,
    )
    eager, pixels, query = copy_eager(model), make_pixels(2, 3, 16, 24), 1

    def plain(one, target):
        return run(
            eager,
            one,
            lambda r: r.logits[0, query, target],
            {1 + 6 + query: 1.0},
            (1, 2),
            partial(sum_cells, axes=(1, 2), sides=(8, 8)),
        )

    explainer = Explainer(model, output=lambda r: r.logits[:, query])
    inputs = {"pixel_values": pixels}
    check_scores(explainer, inputs, [partial(plain, one) for one in pixels.split(1)], [1, 3])
    assert explainer.explain(inputs, 1).grid == (2, 3)


@pytest.mark.parametrize("family", ["Timesformer", "VideoMAE"])
def test_frames(family):
    """Joint attention over space and time: units are (frames, rows, columns)."""
    own = {"attention_type": "joint_space_time"} if family == "Timesformer" else {"tubelet_size": 2}
    model = build_transformers(
        f"{family}ForVideoClassification",
        f"{family}Config",
        **SIZES,
        **own,
        num_frames=4,
        image_size=16,
        patch_size=8,
    )
    eager, pixels = copy_eager(model), make_pixels(2, 4, 3, 16, 16)
    frames = 4 if family == "Timesformer" else 2

    def plain(one, target):
        return run(
            eager,
            one,
            lambda r: r.logits[0, target],
            {0: 1.0} if family == "Timesformer" else {},
            (0, 2, 3),
            partial(sum_cells, axes=(0, 2, 3), sides=(4 // frames, 8, 8)),
        )

    plains = [partial(plain, one) for one in pixels.split(1)]
    explainer, inputs = Explainer(model), {"pixel_values": pixels}
    check_scores(explainer, inputs, plains, [1, 3])
    assert explainer.explain(inputs, 1).grid == (frames, 2, 2)


def test_spectrogram():
    """AST: the input is (time, mel), and its patches are in the order of (mel, time)."""
    model = build_transformers(
        "ASTForAudioClassification",
        "ASTConfig",
        **SIZES,
        patch_size=4,
        frequency_stride=4,
        time_stride=4,
        max_length=12,
        num_mel_bins=8,
    )
    eager, spectrogram = copy_eager(model), make_pixels(2, 12, 8)

    def plain(one, target):
        return run(
            eager,
            one,
            lambda r: r.logits[0, target],
            {0: 0.5, 1: 0.5},
            (0, 1),
            partial(sum_cells, axes=(0, 1), sides=(4, 4)),
            name="input_values",
        )

    plains = [partial(plain, one) for one in spectrogram.split(1)]
    explainer, inputs = Explainer(model), {"input_values": spectrogram}
    check_scores(explainer, inputs, plains, [1, 3])
    result = explainer.explain(inputs, 1)
    assert result.grid == (3, 2)
    assert result.heatmap().shape[-2:] == (12, 8)


def test_overlapping_spectrogram():
    """Patches that overlap share values of the input; each is counted once."""
    model = build_transformers(
        "ASTForAudioClassification",
        "ASTConfig",
        **SIZES,
        patch_size=4,
        frequency_stride=3,
        time_stride=3,
        max_length=14,
        num_mel_bins=9,
    )
    eager, spectrogram = copy_eager(model), make_pixels(2, 14, 9)

    def plain(one, target):
        return run(
            eager,
            one,
            lambda r: r.logits[0, target],
            {0: 0.5, 1: 0.5},
            (0, 1),
            lambda product: product.sum().reshape(1),
            name="input_values",
        )

    plains = [partial(plain, one) for one in spectrogram.split(1)]
    explainer, inputs = Explainer(model), {"input_values": spectrogram}
    check_scores(explainer, inputs, plains, [1, 3], ["rollout", "gae", "tiba", "whence"])
    result = explainer.explain(inputs, [1, 3], method="input_x_gradient")
    assert result.grid == (4, 2)
    for sample, (one, target) in enumerate(zip(plains, (1, 3), strict=True)):
        own = one(target)
        (gradient,) = own.gradients([own.inputs])
        total = float((gradient * own.inputs).sum())
        assert float(result.scores[sample].sum()) == pytest.approx(total, rel=1e-6)


def test_a_grid_that_does_not_divide_the_image():
    """PiT: patches overlap, tokens merge. Methods at the input count each pixel once."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = enlarge_weights(
        timm.models.pit.PoolingVisionTransformer(
            img_size=37,
            patch_size=8,
            stride=4,
            base_dims=(8, 8),
            depth=(1, 1),
            heads=(1, 2),
            num_classes=4,
        )
    )
    pixels = make_pixels(2, 3, 37, 37)
    explainer, leaf = Explainer(model), pixels.clone().requires_grad_()
    result = explainer.explain(pixels, 1, method="input_x_gradient")
    (gradient,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)
    assert result.grid == (8, 8)
    assert torch.allclose(result.scores.sum(-1), (pixels * gradient).sum((1, 2, 3)), rtol=1e-6)
    for method in ("rollout", "tiba", "gae", "whence"):
        assert explainer.explain(pixels, 1, method=method).grid == (8, 8)
