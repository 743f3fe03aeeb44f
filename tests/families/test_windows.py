"""Windows against dense maps: partition, shift, roll, padding and merging by index arithmetic."""

import pytest
import torch

from tests.families.flow_checks import check_flow
from tests.families.flows import INPUT, Plan, average_fields, partition, place_map, run_plainly
from tests.families.models import build_transformers, copy_eager, enlarge_weights, make_pixels
from whence import Explainer

DEPTHS = (2, 2)


def plan_swin(
    grid: tuple[int, int], window: int, roll_first: bool = False, depths: tuple[int, ...] = DEPTHS
) -> Plan:
    """Windows, shifted in every second block, and 2 x 2 tokens merged after each stage."""
    plan, name = Plan(lengths={INPUT: grid[0] * grid[1]}), INPUT
    for stage, depth in enumerate(depths):
        if stage:
            shares, grid = average_fields(grid, 2)
            plan.make(f"stage{stage}", **{name: shares})
            name = f"stage{stage}"
        whole = min(grid) <= window
        side = min(*grid, window)
        for block in range(depth):
            shift = 0 if whole or block % 2 == 0 else side // 2
            plan.attend_in_groups(name, partition(grid, side, shift, roll_first))
    plan.read_mean(name)
    return plan


def build_swin(name: str, image: tuple[int, int], window: int):
    return build_transformers(
        f"{name}ForImageClassification",
        f"{name}Config",
        image_size=image,
        patch_size=4,
        embed_dim=8,
        depths=list(DEPTHS),
        num_heads=[2, 2],
        window_size=window,
        num_labels=3,
    )


def build_timm(name: str, image: tuple[int, int], **options):
    timm = pytest.importorskip("timm")
    torch.manual_seed(5)
    return enlarge_weights(timm.create_model(name, img_size=image, num_classes=3, **options))


def list_blocks(model):
    """The blocks of a Swin of transformers or timm."""
    kinds = ("SwinLayer", "Swinv2Layer", "SwinTransformerBlock", "SwinTransformerV2Block")
    return [module for module in model.modules() if type(module).__name__ in kinds]


def check_swin(model, eager, image, plan, grid, names=None, **options):
    pixels = make_pixels(2, 3, *image)
    inputs = pixels if names is None else {names: pixels}

    def run(sample):
        one = pixels[sample : sample + 1]
        if names is None:
            return run_plainly(eager, lambda own: own(one)[0, 1], list_blocks)
        return run_plainly(eager, lambda own: own(one).logits[0, 1], list_blocks)

    check_flow(Explainer(model), inputs, 1, plan, run, grid=grid, **options)


@pytest.mark.parametrize(
    ("name", "image", "window"),
    [
        ("Swin", (32, 32), 3),  # 8 x 8 tokens, padded to 9 x 9, then 4 x 4, padded to 6 x 6
        pytest.param("Swin", (32, 32), 4, marks=pytest.mark.slow),
        pytest.param("Swin", (20, 36), 2, marks=pytest.mark.slow),  # 5 x 9, merged to 3 x 5
        ("Swinv2", (24, 32), 2),  # 6 x 8, then 3 x 4, padded to 4 x 4
    ],
)
def test_swin_of_transformers(name, image, window):
    model = build_swin(name, image, window)
    grid = image[0] // 4, image[1] // 4
    plan = plan_swin(grid, window)
    check_swin(model, copy_eager(model), image, plan, grid, "pixel_values")


@pytest.mark.parametrize(
    ("name", "image", "window"),
    [
        ("swin_tiny_patch4_window7_224", (32, 32), 3),
        pytest.param("swinv2_tiny_window8_256", (32, 32), 4, marks=pytest.mark.slow),
        pytest.param("swin_tiny_patch4_window7_224", (24, 32), 2, marks=pytest.mark.slow),
    ],
)
def test_swin_of_timm(name, image, window):
    model = build_timm(
        name, image, depths=DEPTHS, num_heads=(2, 2), embed_dim=8, window_size=window
    )
    grid = image[0] // 4, image[1] // 4
    check_swin(model, model, image, plan_swin(grid, window, roll_first=True), grid)


def test_raw_attention_of_the_last_block():
    """The mean of the last block's rows, each merged token's share divided among its four."""
    model = build_swin("Swin", (32, 32), 3)
    plan, eager = plan_swin((8, 8), 3), copy_eager(model)
    methods = ("raw_attention", "partial_lrp")
    check_swin(model, eager, (32, 32), plan, (8, 8), "pixel_values", methods=methods)


@pytest.mark.slow
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("name", ["Swin", "Swinv2"])
def test_the_reference_groups_tokens_as_the_model_does(name, shifted):
    """A block's output depends on its input where the dense map has entries, and on itself."""
    block = list_blocks(build_swin(name, (20, 28), 3))[shifted]
    layer = plan_swin((5, 7), 3).layers[shifted]
    dense = place_map(layer, {INPUT: 35}, torch.ones(len(layer.rows), 9, 9).double())
    allowed = (dense[:, :-1] + torch.eye(35)).bool()
    hidden = make_pixels(1, 35, 8).requires_grad_()
    output = block(hidden, (5, 7))[0].reshape(35, -1)
    count = 0
    for token in range(35):
        (gradient,) = torch.autograd.grad(output[token].sum(), hidden, retain_graph=True)
        reached = gradient[0].abs().amax(-1) > 1e-20  # a mask of -100 leaves exp(-100)
        assert not (reached & ~allowed[token]).any()
        # The mask of shifted windows keeps tokens apart that the roll brought together.
        assert shifted or torch.equal(reached, allowed[token])
        count += int(reached.sum())
    assert count > 100
