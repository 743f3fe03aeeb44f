"""Groups of tokens other than Swin's windows: grids, mask units, frames, patches of one place."""

import pytest
import torch
from torch import Tensor

from tests.families.flow_checks import check_flow
from tests.families.flows import (
    INPUT,
    Layer,
    Plan,
    average_fields,
    partition,
    run_plainly,
)
from tests.families.models import build_transformers, copy_eager, make_pixels
from tests.families.test_windows import build_timm
from whence import Explainer

NO_LINKS = ("rollout", "gae", "tiba", "raw_attention")


def check_image(model, plan, grid, size, list_blocks=None, methods=NO_LINKS, name=None, **run):
    """Check a classifier of images; without blocks, methods that read maps alone."""
    pixels = make_pixels(2, 3, *size)
    eager = model if name is None else copy_eager(model)

    def call(one):
        return lambda own: (own(one) if name is None else own(one).logits)[0, 1]

    check_flow(
        Explainer(model),
        pixels if name is None else {name: pixels},
        1,
        plan,
        lambda sample: run_plainly(eager, call(pixels[sample : sample + 1]), list_blocks, **run),
        methods=methods,
        grid=grid,
    )


# SAM -------------------------------------------------------------------------------------------


def test_windows_and_global_attention_of_sam():
    """timm's encoder: windows of 3 x 3 among 5 x 5 patches, then all; batch and heads are one."""
    model = build_timm(
        "samvit_base_patch16",
        40,
        patch_size=8,
        embed_dim=16,
        depth=2,
        num_heads=2,
        window_size=3,
        global_attn_indexes=(1,),
        neck_chans=8,
    )
    plan = Plan(lengths={INPUT: 25})
    plan.attend_in_groups(INPUT, partition((5, 5), 3))
    plan.attend(INPUT)
    plan.read_mean(INPUT)
    methods = (*NO_LINKS, "whence")
    check_image(
        model,
        plan,
        (5, 5),
        (40, 40),
        lambda own: own.blocks,
        methods,
        heads=lambda maps: maps.reshape(-1, 2, *maps.shape[-2:]),
    )


# MaxViT ----------------------------------------------------------------------------------------


def spread(grid: tuple[int, int], side: int) -> Tensor:
    """Groups of side x side tokens that are spread evenly over a grid: (groups, places)."""
    rows, columns = grid[0] // side, grid[1] // side
    groups = [(a, b) for a in range(rows) for b in range(columns)]
    places = [(i, j) for i in range(side) for j in range(side)]
    return torch.tensor(
        [[(i * rows + a) * grid[1] + j * columns + b for i, j in places] for a, b in groups]
    )


def test_blocks_and_grids_of_maxvit():
    """One block of MaxViT: attention in windows, then among tokens far apart."""
    maxxvit = pytest.importorskip("timm.models.maxxvit")
    conv = maxxvit.MaxxVitConvCfg(attn_layer="", expand_output=False)
    window = maxxvit.MaxxVitTransformerCfg(dim_head=8, window_size=(2, 2), grid_size=(2, 2))
    config = maxxvit.MaxxVitCfg(
        embed_dim=(16,),
        depths=(1,),
        block_type=("M",),
        stem_width=8,
        conv_cfg=conv,
        transformer_cfg=window,
    )
    torch.manual_seed(5)
    model = maxxvit.MaxxVit(config, img_size=16, num_classes=3).eval().double()
    plan = Plan(lengths={INPUT: 16})
    plan.attend_in_groups(INPUT, partition((4, 4), 2))
    plan.attend_in_groups(INPUT, spread((4, 4), 2))
    plan.read_mean(INPUT)
    check_image(model, plan, (4, 4), (16, 16))


# Twins -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_windows_and_pooled_keys_of_twins():
    """Windows of 3 x 3 among 8 x 8 tokens, padded; then keys that pool 4 x 4 tokens."""
    model = build_timm(
        "twins_svt_small",
        32,
        depths=(2,),
        embed_dims=(16,),
        num_heads=(2,),
        mlp_ratios=(2,),
        wss=(3,),
        sr_ratios=(4,),
    )
    # A convolution beside a skip connection follows the first block: tokens stay what they are.
    pooled, _ = average_fields((8, 8), 4)
    plan = Plan(lengths={INPUT: 64})
    plan.attend_in_groups(INPUT, partition((8, 8), 3))
    plan.make("keys", **{INPUT: pooled})
    plan.attend(INPUT, "keys")
    plan.read_mean(INPUT)
    check_image(model, plan, (8, 8), (32, 32))


# Hiera -----------------------------------------------------------------------------------------


def order_by_units(grid: tuple[int, int], steps: int) -> list[int]:
    """Hiera's order of tokens: the place in each 2 x 2 cell comes first, `steps` times over."""
    if steps == 0:
        return list(range(grid[0] * grid[1]))
    inner = order_by_units((grid[0] // 2, grid[1] // 2), steps - 1)
    cells = [divmod(number, grid[1] // 2) for number in inner]
    return [
        (2 * row + i) * grid[1] + 2 * column + j
        for i in range(2)
        for j in range(2)
        for row, column in cells
    ]


def split_windows(order: list[int], windows: int) -> Tensor:
    """Tokens in an order, place by place of all windows: (windows, places)."""
    return torch.tensor(order).reshape(-1, windows).T


def test_mask_units_of_hiera():
    """Attention in units of 4 x 4 tokens; the second stage's queries are the highest of 2 x 2."""
    model = build_transformers(
        "HieraForImageClassification",
        "HieraConfig",
        image_size=[32, 32],
        patch_size=[4, 4],
        patch_stride=[4, 4],
        patch_padding=[0, 0],
        embed_dim=8,
        depths=[1, 2],
        num_heads=[2, 2],
        num_query_pool=1,
        masked_unit_size=[4, 4],
        masked_unit_attention=[True, False],
        num_labels=3,
    )
    fine, coarse = order_by_units((8, 8), 1), order_by_units((4, 4), 0)
    shares, _ = average_fields((8, 8), 2)
    plan = Plan(lengths={INPUT: 64})
    plan.attend_in_groups(INPUT, split_windows(fine, 4))
    plan.make("stage1", **{INPUT: shares})
    pooled = Layer("stage1", INPUT, split_windows(coarse, 4), split_windows(fine, 4))
    plan.steps.append(pooled)
    plan.attend_in_groups("stage1", split_windows(coarse, 1))
    plan.read_mean("stage1")
    check_image(
        model,
        plan,
        (8, 8),
        (32, 32),
        name="pixel_values",
        methods=("rollout", "gae", "tiba"),
        heads=lambda maps: maps[0].transpose(0, 1),
    )


# TimeSformer -----------------------------------------------------------------------------------


def test_divided_attention_of_timesformer():
    """Over time at each place, then over places in each frame, where the class token is in all."""
    frames, places = 3, 4
    model = build_transformers(
        "TimesformerForVideoClassification",
        "TimesformerConfig",
        image_size=16,
        patch_size=8,
        num_frames=frames,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        num_labels=3,
    )
    number = torch.arange(frames * places).reshape(places, frames)  # tokens without the class one
    over_places = torch.cat([torch.zeros(frames, 1).long(), 1 + number.T], 1)
    plan = Plan(lengths={INPUT: 1 + frames * places})
    for _ in range(2):
        plan.attend_in_groups(INPUT, 1 + number)
        plan.attend_in_groups(INPUT, over_places)
    plan.read_token(INPUT, 0)
    units = torch.zeros(1 + frames * places, frames * places).double()
    units[1 + number.T.flatten(), torch.arange(frames * places)] = 1
    plan.units = {INPUT: units}
    videos = make_pixels(2, frames, 3, 16, 16)
    check_flow(
        Explainer(model),
        {"pixel_values": videos},
        1,
        plan,
        lambda i: run_plainly(model, lambda own: own(videos[i : i + 1]).logits[0, 1]),
        methods=NO_LINKS,
        grid=(frames, 2, 2),
    )
