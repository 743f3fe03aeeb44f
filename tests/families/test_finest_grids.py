"""Hierarchies as they are sold: the grid of the map, finite scores, a batch as each alone."""

import pytest
import torch

from tests.families.models import build_transformers, make_pixels
from tests.families.test_windows import build_timm
from whence import Explainer

METHODS = ("whence", "gae", "rollout", "tiba")


def _build_maxxvit(*blocks: str, window: int = 2):
    """A model of the family of CoAtNet and MaxViT, with its usual convolutions and gates."""
    maxxvit = pytest.importorskip("timm.models.maxxvit")
    config = maxxvit.MaxxVitCfg(
        embed_dim=(8,) * len(blocks),
        depths=(1,) * len(blocks),
        block_type=blocks,
        stem_width=8,
        transformer_cfg=maxxvit.MaxxVitTransformerCfg(
            dim_head=8, window_size=(window, window), grid_size=(window, window)
        ),
    )
    torch.manual_seed(5)
    return maxxvit.MaxxVit(config, img_size=32, num_classes=3).eval().double()


def _build_mobilevit():
    return build_transformers(
        "MobileViTForImageClassification",
        "MobileViTConfig",
        image_size=64,
        hidden_sizes=[16, 16, 16],
        neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
        num_attention_heads=2,
        num_labels=3,
    )


CASES = {
    # name: (build, size of the image, grid of the first attention that is read)
    "MaxViT": (lambda: _build_maxxvit("M", "M"), 32, (8, 8)),
    "CoAtNet": (lambda: _build_maxxvit("C", "T", "T"), 32, (4, 4)),
    "PCPVT": (
        lambda: build_timm(
            "twins_pcpvt_small",
            32,
            depths=(1, 2),
            embed_dims=(8, 16),
            num_heads=(2, 2),
            mlp_ratios=(2, 2),
            sr_ratios=(2, 1),
        ),
        32,
        (8, 8),
    ),
    "PiT, distilled": (
        lambda: build_timm(
            "pit_ti_distilled_224",
            64,
            patch_size=16,
            stride=8,
            base_dims=(8, 8),
            depth=(1, 1),
            heads=(2, 2),
        ),
        64,
        (7, 7),
    ),
    "MobileViT": (_build_mobilevit, 64, (8, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_the_finest_grid(name, method):
    build, side, grid = CASES[name]
    explainer, pixels = Explainer(build()), make_pixels(2, 3, side, side)
    if name == "MobileViT":
        pixels = {"pixel_values": pixels}
    # With its random weights, MobileViT has evidence for the first class alone.
    target = 0 if name == "MobileViT" else 1
    both = explainer.explain(pixels, target, method=method)
    assert both.grid == grid
    assert torch.isfinite(both.scores).all()
    assert both.scores.std() > 0
    for sample in range(2):
        one = (
            {key: value[sample : sample + 1] for key, value in pixels.items()}
            if isinstance(pixels, dict)
            else pixels[sample : sample + 1]
        )
        alone = explainer.explain(one, target, method=method).scores[0]
        assert torch.allclose(both.scores[sample], alone, rtol=1e-6, atol=1e-9 * float(alone.max()))
