"""Image models: parallel branches, and attention that the target does not depend on."""

from functools import partial

import pytest
import torch

from tests.families.formulas import center
from tests.families.models import (
    build_transformers,
    check_scores,
    copy_eager,
    enlarge_weights,
    make_pixels,
)
from tests.families.vision import run_timm, run_transformers
from whence import Explainer

VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 24,
    "patch_size": 8,
    "num_labels": 4,
}
PATCHES = range(1, 10)
CLASS_TOKEN = {0: 1.0}


def build_timm(block: str):
    timm = pytest.importorskip("timm")
    blocks = timm.models.vision_transformer
    torch.manual_seed(0)
    model = blocks.VisionTransformer(
        img_size=24,
        patch_size=8,
        embed_dim=16,
        depth=2,
        num_heads=2,
        num_classes=4,
        init_values=0.5,
        block_fn=getattr(blocks, block),
    )
    return enlarge_weights(model)


@pytest.mark.parametrize(
    "block", ["Block", "ResPostBlock", "ParallelScalingBlock", "ParallelThingsBlock"]
)
def test_timm_blocks(block):
    """Attentions side by side, as in ParallelThingsBlock, are heads of one layer."""
    model, pixels = build_timm(block), make_pixels(2, 3, 24, 24)
    plains = [
        partial(lambda one, target: run_timm(model, one, target, CLASS_TOKEN, PATCHES), one)
        for one in pixels.split(1)
    ]
    check_scores(Explainer(model), pixels, plains, target=[1, 3])


def test_siglip_classification_does_not_use_its_pooling_head():
    model = build_transformers(
        "SiglipForImageClassification", "SiglipConfig", vision_config=VISION, num_labels=4
    )
    assert model.vision_model.use_head
    eager, pixels = copy_eager(model), make_pixels(2, 3, 24, 24)

    def run(one, target):
        everywhere = dict.fromkeys(range(9), 1 / 9)
        return run_transformers(eager, one, lambda r: r.logits[0, target], everywhere, range(9))

    plains = [partial(run, one) for one in pixels.split(1)]
    check_scores(Explainer(model), {"pixel_values": pixels}, plains, target=[1, 3])


@pytest.mark.parametrize("back", [1, 2, 3])
def test_hidden_states_from_the_middle(back):
    model = build_transformers("ViTForImageClassification", "ViTConfig", **VISION)
    eager, pixels = copy_eager(model), make_pixels(2, 3, 24, 24)

    def read(head, returned):
        return head(returned.hidden_states[-back][:, 0])

    def run(one, target):
        layers = 5 - back
        return run_transformers(
            eager,
            one,
            lambda r: read(eager.classifier, r)[0, target],
            CLASS_TOKEN,
            PATCHES,
            layers=layers,
            read_centered=lambda r: center(read(eager.classifier, r))[0, target],
        )

    explainer = Explainer(model, output=lambda r: read(model.classifier, r))
    plains = [partial(run, one) for one in pixels.split(1)]
    inputs = {"pixel_values": pixels, "output_hidden_states": True}
    check_scores(explainer, inputs, plains, target=[1, 3])


def test_beit_segmentation_reads_several_layers():
    """A place of the map is read from what leaves three layers; the fourth leads nowhere."""
    model = build_transformers(
        "BeitForSemanticSegmentation",
        "BeitConfig",
        **{**VISION, "image_size": 32},
        out_indices=[1, 2, 3, 4],
        pool_scales=[1, 2],
        use_auxiliary_head=False,
    )
    eager, pixels = copy_eager(model), make_pixels(2, 3, 32, 32)

    def run(one, target):
        everywhere = dict.fromkeys(range(16), 1 / 16)
        return run_transformers(
            eager,
            one,
            lambda r: r.logits[0, target, 3, 5],
            everywhere,
            range(1, 17),
            layers=3,
            read_centered=lambda r: center(r.logits[0, :, 3, 5])[target],
        )

    plains = [partial(run, one) for one in pixels.split(1)]
    explainer = Explainer(model, output=lambda returned: returned.logits[:, :, 3, 5])
    inputs = {"pixel_values": pixels}
    check_scores(explainer, inputs, plains, [1, 3], methods=("whence", "input_x_gradient"))
    scores = explainer.explain(inputs, [1, 3], method="rollout").scores
    assert ((scores > 0) & (scores < 1)).all()  # the class token, which none reads, has the rest
    assert (scores.sum(1) < 1).all()
