"""Boxes and pixels by methods of attention, against plain loops over the model's own maps."""

import copy
from functools import partial

import pytest
import torch

from tests.families.flow_checks import check_flow
from tests.families.flows import INPUT, Plan, average_fields, run_plainly
from tests.families.formulas import compute_scores, link_evidence, sum_reads
from tests.families.models import build_transformers, copy_eager, make_pixels
from tests.families.vision import run_transformers
from whence import Explainer, WhenceError, targets

SLOW = partial(pytest.param, marks=pytest.mark.slow)
QUERY, LABEL, QUERIES = 2, 1, 4
LABELS = {0: "cat", 1: "dog"}
SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "num_queries": QUERIES,
    "id2label": LABELS,
}


def build_detr(name: str, **more):
    transformers = pytest.importorskip("transformers")
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=more.pop("out_features", ["stage2"]),
    )
    return build_transformers(
        f"{name}ForObjectDetection",
        f"{name}Config",
        backbone_config=backbone,
        use_timm_backbone=False,
        **{**SIZES, **more},
    )


@pytest.mark.parametrize("name", ["Detr", *map(SLOW, ("ConditionalDetr", "TableTransformer"))])
def test_boxes_of_encoder_decoders(name):
    """Queries start as constants, so that the first of their attentions is one, too."""
    model, pixels = build_detr(name), make_pixels(2, 3, 32, 40)
    tokens = 4 * 5
    plan = Plan(lengths={INPUT: tokens, "queries": QUERIES})
    plan.attend(INPUT)
    plan.attend(INPUT)
    plan.attend("queries", INPUT, has_skip=False)
    plan.attend("queries")
    plan.attend("queries", INPUT)
    plan.read_token("queries", QUERY)
    eager = copy_eager(model)

    def run(sample):
        return run_plainly(
            eager,
            lambda own: own(pixel_values=pixels[sample, None]).logits[0, QUERY, LABEL],
            lambda own: own.model.encoder.layers,  # queries stand for no part of the input
            lambda maps: [*maps[:2], *maps[3:]],
        )

    target, explainer = targets.box(QUERY, LABEL), Explainer(model)
    check_flow(explainer, pixels, target, plan, run, ("rollout", "tiba"), grid=(4, 5))
    found = explainer.explain(pixels, target, method="whence", gradients="plain")
    for sample in range(2):
        expected = find_evidence_of_encoder(run(sample))
        assert torch.allclose(found.scores[sample], expected, rtol=1e-6)


def find_evidence_of_encoder(run):
    """`whence` with plain gradients: only the encoder's attention links parts of the input.

    What queries read of it counts, what they read of each other does not.
    """
    held = sum((x * g).sum(-1) for x, g in zip(run.hidden, run.hidden_gradients, strict=True))
    pairs = list(zip(run.maps, run.gradients, strict=True))
    of_queries = [maps.shape[-1] == QUERIES for maps in run.maps]
    assert of_queries.count(True) == 1
    read = sum(sum_reads(*one) for one, apart in zip(pairs, of_queries, strict=True) if not apart)
    attention = run.maps[0][0].sum(0) + run.maps[1][0].sum(0)
    return link_evidence(held + 4 * read, attention, torch.ones(len(held), dtype=torch.bool))


def build_segformer():
    return build_transformers(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[2, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        num_labels=3,
    )


def measure_reads(model, pixels, read):
    """How much a scalar depends on what leaves each attention, with no attention between."""
    own, leaves, entered = copy.deepcopy(model), [], []

    def cut(_module, _args, output):
        leaves.append((output + entered[-1]).detach().requires_grad_())
        return leaves[-1] - entered[-1]  # so that the sum is the leaf alone

    for stage in own.segformer.stages:
        for block in stage.blocks:
            block.register_forward_pre_hook(lambda _m, args: entered.append(args[0]))
            block.hidden_dropout.register_forward_hook(cut)
    gradients = torch.autograd.grad(read(own(pixel_values=pixels)), leaves)
    sums = [one[0].abs().sum(-1) for one in gradients]
    return [one / sum(map(torch.sum, sums)) for one in sums]


@pytest.mark.parametrize("sample", [0, SLOW(1)])
def test_pixels_of_segformer(sample):
    """The head reads the tokens of both stages around a place."""
    model, pixels = build_segformer(), make_pixels(2, 3, 32, 32)[sample, None]
    merged, _ = average_fields((8, 8), 2, 3)
    pooled, _ = average_fields((8, 8), 2)
    plan = Plan(lengths={INPUT: 64})
    plan.make("keys", **{INPUT: pooled})
    plan.attend(INPUT, "keys")
    plan.make("stage1", **{INPUT: merged})
    plan.attend("stage1")

    def read(returned):
        return returned.logits[0, 2, 3, 5]

    plan.read = dict(zip((INPUT, "stage1"), measure_reads(model, pixels, read), strict=True))
    eager = copy_eager(model)
    run = partial(
        run_plainly,
        eager,
        lambda own: read(own(pixel_values=pixels)),
        lambda own: [stage.blocks[0] for stage in own.segformer.stages],
    )
    check_flow(
        Explainer(model),
        pixels,
        targets.pixel(3, 5, 2),
        plan,
        lambda _: run(),
        ("rollout", "gae", "tiba", "whence"),
        samples=1,
        grid=(8, 8),
        keeps_identity=True,
    )


def test_boxes_of_yolos():
    """Tokens for boxes come after the patches, and are none of them."""
    model = build_transformers(
        "YolosForObjectDetection",
        "YolosConfig",
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        patch_size=8,
        image_size=[16, 24],
        num_detection_tokens=QUERIES,
        use_mid_position_embeddings=False,
        id2label=LABELS,
    )
    pixels, eager = make_pixels(2, 3, 16, 24), copy_eager(model)
    patches = 2 * 3

    def read_logit(returned):
        return returned.logits[0, QUERY, LABEL]

    plains = [
        run_transformers(
            eager,
            one[None],
            read_logit,
            {1 + patches + QUERY: 1.0},
            range(1, 1 + patches),
            read_centered=read_logit,  # classes of boxes are not taken to compete
        )
        for one in pixels
    ]
    explainer = Explainer(model)
    for method in ("rollout", "gae", "whence", "input_x_gradient"):
        more = {"gradients": "plain"} if method == "whence" else {}
        found = explainer.explain(pixels, targets.box(QUERY, LABEL), method=method, **more)
        for sample, plain in enumerate(plains):
            expected = compute_scores(method, plain)
            assert torch.allclose(found.scores[sample], expected, rtol=1e-4, atol=1e-9), method


@pytest.mark.parametrize("method", ["whence", SLOW("tiba"), "gae", SLOW("rollout")])
def test_deformable_attention_has_no_maps(method):
    sizes = {"d_model": 32, "num_feature_levels": 2, "out_features": ["stage1", "stage2"]}
    model = build_detr("DeformableDetr", encoder_n_points=2, decoder_n_points=2, **sizes)
    explainer, pixels = Explainer(model), make_pixels(1, 3, 32, 40)
    with pytest.raises(WhenceError, match=r"deformable attention.*'input_x_gradient'"):
        explainer.explain(pixels, targets.box(QUERY, LABEL), method=method)
    result = explainer.explain(pixels, targets.box(QUERY, LABEL), method="input_x_gradient")
    leaf = pixels.clone().requires_grad_()
    model(pixel_values=leaf).logits[0, QUERY, LABEL].backward()
    rows, columns = result.grid
    cells = (leaf * leaf.grad)[0].sum(0).reshape(rows, 32 // rows, columns, 40 // columns)
    assert torch.allclose(result.scores.reshape(rows, columns), cells.sum((1, 3)), rtol=1e-6)
