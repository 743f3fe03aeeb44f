"""Pairs beyond two Transformers: a tower without attention, groups, videos, heads that match."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families.formulas import sum_patches
from tests.families.models import build_transformers, make_pixels
from tests.families.test_pairs import LENGTHS, TEXT, VISION, WIDTH, make_inputs, select_pair
from tests.two_inputs import TwoTowers, make_pair
from whence import Explainer, WhenceError

SMALL_BERT = {**TEXT, "pad_token_id": 0}
ALIGN = {
    "width_coefficient": 0.25,
    "depth_coefficient": 0.25,
    "hidden_dim": 64,
    "image_size": 32,
    "in_channels": [32, 16],
    "out_channels": [16, 24],
    "kernel_sizes": [3, 3],
    "strides": [1, 2],
    "num_block_repeats": [1, 1],
    "expand_ratios": [1, 2],
    "depthwise_padding": [],
}
GROUPS = {
    **VISION,
    "image_size": 32,
    "num_hidden_layers": 3,
    "depths": [1, 1, 1],
    "num_group_tokens": [4, 2, 0],
    "num_output_groups": [4, 2, 0],
}
MIXING = {"mit_hidden_size": WIDTH, "mit_intermediate_size": 24, "mit_num_attention_heads": 2}
MIXING |= {"mit_num_hidden_layers": 1, "num_frames": 2}


def make_pairs(pixels: Tensor, padding: int = 37) -> dict[str, Tensor]:
    inputs = make_inputs("CLIP")
    ids = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, padding)
    return {**inputs, "input_ids": ids, "pixel_values": pixels}


# A tower without attention -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def align():
    config = {"text_config": SMALL_BERT, "vision_config": ALIGN, "projection_dim": 8}
    model = build_transformers("AlignModel", "AlignConfig", **config)
    return model, make_pairs(make_pixels(2, 3, 32, 32), padding=0)


@pytest.mark.parametrize("method", ["whence", "gae"])
def test_methods_of_attention_refuse_a_convolutional_tower(align, method):
    model, inputs = align
    with pytest.raises(WhenceError, match=r"No attention was seen.*only the input: .*occlusion"):
        Explainer(model).explain(inputs, 1, of="pixel_values", method=method)
    assert Explainer(model).explain(inputs, 1, of="input_ids", method=method).scores.any()


def test_methods_at_the_input_explain_a_convolutional_tower(align):
    model, inputs = align
    leaf = inputs["pixel_values"].clone().requires_grad_()
    logits = model(**{**inputs, "pixel_values": leaf}).logits_per_image
    (gradient,) = torch.autograd.grad(logits[0, 2] + logits[1, 0], leaf)
    found = Explainer(model).explain(
        inputs, [2, 0], of="pixel_values", method="input_x_gradient", gradients="plain"
    )
    rows, columns = found.grid
    assert rows == columns
    expected = [sum_patches(one, 32 // rows) for one in (gradient * leaf).detach()]
    assert torch.allclose(found.scores, torch.stack(expected), rtol=1e-5, atol=1e-9)


# Rows of patches ---------------------------------------------------------------------------------


def build_naflex() -> tuple[Any, dict[str, Tensor]]:
    vision = {name: size for name, size in VISION.items() if name != "image_size"}
    config = {"text_config": {**TEXT, "projection_size": WIDTH}}
    config["vision_config"] = {**vision, "num_patches": 4, "num_channels": 3}
    model = build_transformers("Siglip2Model", "Siglip2Config", **config)
    images = make_pixels(2, 3, 16, 24)  # 2 x 3 patches
    squares = images.unfold(2, 8, 8).unfold(3, 8, 8)  # (batch, channels, rows, columns, 8, 8)
    patches = squares.permute(0, 2, 3, 4, 5, 1).reshape(2, 6, 192)
    padding = torch.zeros(2, 2, 192).double()
    return model, {
        "input_ids": make_inputs("Siglip")["input_ids"],
        "pixel_values": torch.cat([patches, padding], 1),
        "pixel_attention_mask": torch.tensor([[1] * 6 + [0] * 2] * 2),
        "spatial_shapes": torch.tensor([[2, 3]] * 2),
    }


@pytest.mark.parametrize(
    "method", [pytest.param("gae", marks=pytest.mark.slow), "input_x_gradient"]
)
def test_rows_of_patches_are_an_image(method):
    """SigLIP 2: the map has the rows and columns that the processor cut the image into."""
    model, inputs = build_naflex()
    options = {"gradients": "plain"} if method == "input_x_gradient" else {}
    found = Explainer(model).explain(inputs, 1, of="pixel_values", method=method, **options)
    assert (found.grid, found.image_size) == ((2, 3), (16, 24))
    leaf = inputs["pixel_values"].clone().requires_grad_()
    logits = model(**{**inputs, "pixel_values": leaf}).logits_per_image
    assert torch.allclose(found.logits, logits, rtol=1e-5)
    if method == "input_x_gradient":
        (gradient,) = torch.autograd.grad(logits[:, 1].sum(), leaf)
        expected = (gradient * leaf).sum(-1)[:, :6].detach()
        assert torch.allclose(found.scores, expected, rtol=1e-4, atol=1e-8)
    shapes = torch.tensor([[2, 3], [3, 2]])  # of which no one grid can be told
    rows = Explainer(model).explain(
        {**inputs, "spatial_shapes": shapes}, 1, of="pixel_values", method=method, **options
    )
    assert (rows.grid, rows.scores.shape) == (None, (2, 8))
    assert torch.allclose(rows.scores[0, :6], found.scores[0], rtol=1e-4, atol=1e-8)
    assert not rows.scores[0, 6:].any()


# Groups of patches, and videos -------------------------------------------------------------------


def build_groups() -> tuple[Any, dict[str, Tensor], tuple[int, ...]]:
    config = {"text_config": TEXT, "vision_config": GROUPS, "projection_dim": 8}
    model = build_transformers(
        "GroupViTModel", "GroupViTConfig", projection_intermediate_dim=12, **config
    )
    return model, make_pairs(make_pixels(2, 3, 32, 32)), (4, 4)


def build_videos() -> tuple[Any, dict[str, Tensor], tuple[int, ...]]:
    config = {"text_config": TEXT, "vision_config": {**VISION, **MIXING}}
    config |= {"projection_dim": WIDTH, "prompt_layers": 1, "prompt_num_attention_heads": 2}
    model = build_transformers("XCLIPModel", "XCLIPConfig", **config)
    return model, make_pairs(make_pixels(2, 2, 3, 16, 16)), (2, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "input_x_gradient"])
@pytest.mark.parametrize("build", [build_groups, build_videos])
def test_each_pair_alone(build, method):
    model, inputs, grid = build()
    explainer = Explainer(model)
    found = explainer.explain(inputs, [2, 1], of="pixel_values", method=method)
    assert found.grid == grid
    for image, text in enumerate((2, 1)):
        pair = select_pair(inputs, image, text)
        alone = explainer.explain(pair, 0, of="pixel_values", method=method).scores[0]
        close = {"rtol": 1e-4, "atol": 1e-5 * float(alone.abs().max())}
        if build is build_videos:  # whose texts look at all videos of the batch, and at no other
            pair = {**select_pair(inputs, image, text), "input_ids": inputs["input_ids"]}
            pair["attention_mask"] = inputs["attention_mask"]
            alone = explainer.explain(pair, text, of="pixel_values", method=method).scores[0]
        assert torch.allclose(found.scores[image], alone, **close)


def test_an_order_that_is_drawn_at_random_is_one_order():
    """As in ViLT, whose patches come in another order in each pass and sample."""

    class Compared(TwoTowers):
        def __init__(self, shuffles: bool) -> None:
            super().__init__()
            self.shuffles = shuffles

        def forward(self, pixels, ids):
            patches = self.embed(pixels)
            if self.shuffles:
                rows = [one[torch.multinomial(torch.ones(4), 4)] for one in patches]
                patches = torch.stack(rows)
            return self.images(patches).mean(1) @ self.texts(self.embed(ids)).mean(1).T

    inputs, shuffling = make_pair(3, 3), Explainer(Compared(shuffles=True))
    expected = Explainer(Compared(shuffles=False)).explain(inputs, 1, of="pixels", method="gae")
    for _ in range(2):
        found = shuffling.explain(inputs, 1, of="pixels", method="gae")
        assert torch.allclose(found.scores, expected.scores, rtol=1e-4)


# Heads that match --------------------------------------------------------------------------------


def build_matching(name: str) -> Any:
    if name == "Blip":
        text = {**TEXT, "encoder_hidden_size": WIDTH, "sep_token_id": 39, "is_decoder": True}
        sizes: dict[str, Any] = {"text_config": text, "vision_config": VISION}
        sizes |= {"projection_dim": 8, "image_text_hidden_size": 8}
        return build_transformers("BlipForImageTextRetrieval", "BlipConfig", **sizes)
    if name == "Vilt":
        sizes = {**TEXT, **VISION, "max_image_length": -1, "num_images": -1}
        return build_transformers("ViltForImageAndTextRetrieval", "ViltConfig", **sizes)
    tower = {"hidden_size": 64, "num_hidden_layers": 3, "patch_size": 8, "image_size": 16}
    text = {**TEXT, "hidden_size": 64, "type_vocab_size": 1, "pad_token_id": 1}
    sizes = {"text_config": text, "vision_config": tower, "hidden_size": 64}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return build_transformers("BridgeTowerForImageAndTextRetrieval", "BridgeTowerConfig", **sizes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Blip", "Vilt", "BridgeTower"])
def test_heads_that_match_image_and_text(name):
    """Row by row: each image with its text; both inputs get scores, from one pass."""
    model = build_matching(name)
    inputs = make_pairs(make_pixels(3, 3, 16, 16), padding=1 if name == "BridgeTower" else 37)
    if name == "BridgeTower":
        inputs["pixel_mask"] = torch.ones(3, 16, 16, dtype=torch.long)
    explainer = Explainer(model)
    found = explainer.explain(
        inputs, 0, of=["pixel_values", "input_ids"], method="input_x_gradient", gradients="plain"
    )
    leaf = inputs["pixel_values"].clone().requires_grad_()
    returned = model(**{**inputs, "pixel_values": leaf})
    logits = returned.itm_score if name == "Blip" else returned.logits
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), leaf)
    expected = torch.stack([sum_patches(one) for one in (gradient * leaf).detach()])
    assert torch.allclose(found["pixel_values"].logits, logits, rtol=1e-5)
    assert torch.allclose(found["pixel_values"].scores, expected, rtol=1e-4, atol=1e-8)
    for row, length in enumerate(LENGTHS):
        assert not found["input_ids"].scores[row, length:].any()
    # GAE's rules follow layers in turn, and BridgeTower's layers read both towers again and again.
    for method in ("whence", "tiba", "rollout" if name == "BridgeTower" else "gae"):
        for of in ("pixel_values", "input_ids"):
            every = explainer.explain(inputs, 0, of=of, method=method).scores[1]
            row = {n: x[1:2] for n, x in inputs.items()}
            alone = explainer.explain(row, 0, of=of, method=method).scores[0]
            assert torch.allclose(every, alone, rtol=1e-4, atol=1e-6 * float(alone.abs().max()))
