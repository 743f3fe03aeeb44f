"""Sequences that change: merged tokens, pooled keys and queries, class attention, latents."""

import pytest
import torch
from torch import Tensor

from tests.families.flow_checks import check_flow
from tests.families.flows import INPUT, Layer, Plan, average_fields, run_plainly
from tests.families.models import build_transformers, copy_eager, make_ids
from tests.families.test_groups import NO_LINKS, check_image
from tests.families.test_windows import build_timm
from whence import Explainer


def keep_first(shares: Tensor, first_made: bool = True) -> Tensor:
    """Beside other tokens, a first one that is made of the first one, or of nothing."""
    before = torch.zeros(len(shares), 1).double() if first_made else shares.new_zeros(0, 1)
    whole = torch.cat([before, shares], 1) if first_made else shares
    first = torch.zeros(1, whole.shape[1]).double()
    if first_made:
        first[0, 0] = 1
    return torch.cat([first, whole])


# Pyramids --------------------------------------------------------------------------------------


def build_pvt():
    return build_transformers(
        "PvtForImageClassification",
        "PvtConfig",
        image_size=32,
        num_encoder_blocks=2,
        depths=[2, 1],
        sequence_reduction_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[4, 2],
        strides=[4, 2],
        num_attention_heads=[2, 2],
        mlp_ratios=[2, 2],
        num_labels=3,
    )


def test_pooled_keys_and_merged_tokens_of_pvt():
    """A key is the mean of 2 x 2 tokens, and so is a token of the second stage."""
    shares, _ = average_fields((8, 8), 2)
    plan = Plan(lengths={INPUT: 64})
    for block in range(2):
        plan.make(f"keys{block}", **{INPUT: shares})
        plan.attend(INPUT, f"keys{block}")
    plan.make("stage1", **{INPUT: keep_first(shares, first_made=False)})
    plan.attend("stage1")
    plan.read_token("stage1", 0)
    kind = ("PvtLayer",)
    check_image(
        build_pvt(),
        plan,
        (8, 8),
        (32, 32),
        lambda own: [m for m in own.modules() if type(m).__name__ in kind],
        (*NO_LINKS, "whence"),
        name="pixel_values",
    )


def build_segformer():
    return build_transformers(
        "SegformerForImageClassification",
        "SegformerConfig",
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[2, 2],
        mlp_ratios=[2, 2],
        num_labels=3,
    )


@pytest.mark.slow
def test_overlapping_patches_of_segformer():
    """The second stage's tokens are made of 3 x 3; each MLP mixes 3 x 3 beside its skip."""
    merged, _ = average_fields((8, 8), 2, 3)
    pooled, _ = average_fields((8, 8), 2)
    plan = Plan(lengths={INPUT: 64})
    plan.make("keys", **{INPUT: pooled})
    plan.attend(INPUT, "keys")
    plan.make("stage1", **{INPUT: merged})
    plan.attend("stage1")
    plan.read_mean("stage1")
    check_image(build_segformer(), plan, (8, 8), (32, 32), name="pixel_values")


@pytest.mark.slow
def test_pooled_tokens_of_pit():
    """5 x 5 tokens and a class token; a convolution of 3 x 3 tokens leaves 3 x 3."""
    model = build_timm(
        "pit_ti_224", 40, patch_size=8, stride=8, base_dims=(8, 8), depth=(1, 1), heads=(2, 2)
    )
    shares, _ = average_fields((5, 5), 2, 3)
    plan = Plan(lengths={INPUT: 26})
    plan.attend(INPUT)
    plan.make("stage1", **{INPUT: keep_first(shares)})
    plan.attend("stage1")
    plan.read_token("stage1", 0)
    plan.units = {INPUT: keep_first(torch.eye(25).double(), first_made=False)}
    check_image(model, plan, (5, 5), (40, 40))


@pytest.mark.slow
def test_strided_queries_of_levit():
    """Every second token of each row and column attends, without a skip connection."""
    model = build_timm(
        "levit_128s",
        128,
        embed_dim=(16, 16),
        key_dim=8,
        depth=(1, 1),
        num_heads=(2, 2),
    )
    plan = Plan(lengths={INPUT: 64, "stage1": 16})
    plan.attend(INPUT)
    rows = torch.arange(16)[None]
    plan.steps.append(Layer("stage1", INPUT, rows, torch.arange(64)[None], has_skip=False))
    plan.attend("stage1")
    plan.read_mean("stage1")
    check_image(model, plan, (8, 8), (128, 128), methods=NO_LINKS[:3])


@pytest.mark.slow
def test_pooled_tokens_of_coatnet():
    """Two stages of Transformer blocks; the second averages 2 x 2 tokens before it attends."""
    maxxvit = pytest.importorskip("timm.models.maxxvit")
    config = maxxvit.MaxxVitCfg(
        embed_dim=(16, 16),
        depths=(1, 2),
        block_type=("T", "T"),
        stem_width=8,
        transformer_cfg=maxxvit.MaxxVitTransformerCfg(dim_head=8, window_size=(1, 1)),
    )
    torch.manual_seed(5)
    model = maxxvit.MaxxVit(config, img_size=32, num_classes=3).eval().double()
    shares, _ = average_fields((8, 8), 2)
    plan = Plan(lengths={INPUT: 64})
    plan.attend(INPUT)
    plan.make("stage1", **{INPUT: shares})
    plan.attend("stage1")
    plan.attend("stage1")
    plan.read_mean("stage1")
    check_image(model, plan, (8, 8), (32, 32))


# Class attention -------------------------------------------------------------------------------


def test_class_attention_of_cait():
    """Patches attend to each other, then a class token to itself and to them, twice."""
    model = build_timm(
        "cait_xxs24_224",
        32,
        patch_size=8,
        embed_dim=16,
        depth=2,
        depth_token_only=2,
        num_heads=2,
        init_values=1.0,
    )
    plan = Plan(lengths={INPUT: 16, "class": 1})
    plan.attend(INPUT)
    plan.attend(INPUT)
    first, rest = torch.eye(17)[:, :1], torch.eye(17)[:, 1:]
    for block in range(2):  # the class token is a constant at first, of which nothing is kept
        plan.make(f"both{block}", **{"class": first, INPUT: rest})
        plan.attend("class", f"both{block}", has_skip=block > 0)
    plan.read_token("class", 0)
    kinds = ("TalkingHeadAttn", "ClassAttn")
    check_image(
        model,
        plan,
        (4, 4),
        (32, 32),
        maps_of=lambda own: [m.attn_drop for m in own.modules() if type(m).__name__ in kinds],
    )


# Texts -----------------------------------------------------------------------------------------


def check_text(model, plan, ids, name="input_ids", methods=NO_LINKS, **options):
    eager = copy_eager(model)
    check_flow(
        Explainer(model),
        {name: ids},
        1,
        plan,
        lambda i: run_plainly(eager, lambda own: own(**{name: ids[i : i + 1]}).logits[0, 1]),
        methods=methods,
        **options,
    )


@pytest.mark.slow
def test_pooled_queries_of_funnel():
    """The second block's queries are the first token and means of two; the last has no partner."""
    model = build_transformers(
        "FunnelForSequenceClassification",
        "FunnelConfig",
        vocab_size=40,
        block_sizes=[1, 2],
        d_model=16,
        n_head=2,
        d_head=8,
        d_inner=24,
        num_labels=3,
    )
    plan = Plan(lengths={INPUT: 8})
    plan.attend(INPUT)
    shares = torch.zeros(4, 8)
    shares[0, 0] = 1
    for token in range(1, 4):
        shares[token, 2 * token - 1 : 2 * token + 1] = 0.5
    plan.make("block1", **{INPUT: shares})
    plan.attend("block1", INPUT)
    plan.attend("block1")
    plan.read_token("block1", 0)
    check_text(model, plan, make_ids(2, 8), keeps_identity=True)


@pytest.mark.slow
def test_latents_of_perceiver():
    """Latents read the words, then themselves; a constant query reads these."""
    model = build_transformers(
        "PerceiverForSequenceClassification",
        "PerceiverConfig",
        vocab_size=40,
        d_model=16,
        d_latents=16,
        num_latents=5,
        num_blocks=1,
        num_self_attends_per_block=2,
        num_self_attention_heads=2,
        num_cross_attention_heads=2,
        max_position_embeddings=8,
        num_labels=3,
    )
    plan = Plan(lengths={INPUT: 8, "latents": 5, "query": 1})
    plan.attend("latents", INPUT, has_skip=False)  # latents are constants at first
    plan.attend("latents")
    plan.attend("latents")
    plan.attend("query", "latents", has_skip=False)
    plan.read_token("query", 0)
    check_text(model, plan, make_ids(2, 8), "inputs", NO_LINKS[:3])
