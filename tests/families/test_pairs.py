"""Models of two towers: each pair of image and text against formulas over the towers themselves."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.families.formulas import Plain, sum_patches
from tests.families.models import (
    HEADS,
    LAYERS,
    WIDTH,
    WORDS,
    build_transformers,
    check_scores,
    copy_eager,
    make_ids,
    make_pixels,
)
from whence import Explainer

END, START, PADDING = WORDS - 1, WORDS - 2, WORDS - 3
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
}
VISION = {**SIZES, "image_size": 16, "patch_size": 8}
TEXT = {
    **SIZES,
    "vocab_size": WORDS,
    "max_position_embeddings": 48,
    "eos_token_id": END,
    "bos_token_id": START,
    "pad_token_id": PADDING,
}
LENGTHS = (7, 5, 6)


@dataclass(frozen=True)
class Towers:
    """A family of two towers.

    Attributes:
        text: More of the text tower's configuration.
        more: More of the whole configuration.
        read: The token of a text that is compared, 0 or -1.
        has_class_token: Whether images are read at a class token before the patches.
        has_padding: Whether texts may be padded.
    """

    text: dict[str, Any]
    more: dict[str, Any]
    read: int = -1
    has_class_token: bool = True
    has_padding: bool = True


NARROW = {"projection_dim": 8}
FAMILIES = {
    "CLIP": Towers({}, NARROW),
    "CLIPSeg": Towers({}, NARROW),
    "MetaClip2": Towers({}, NARROW),
    "OwlViT": Towers({}, NARROW),
    "Owlv2": Towers({}, NARROW),
    "Blip": Towers({"encoder_hidden_size": WIDTH, "sep_token_id": END}, NARROW, read=0),
    "ChineseCLIP": Towers({"pad_token_id": 0}, NARROW, read=0),
    "AltCLIP": Towers({"project_dim": WIDTH, "type_vocab_size": 1}, NARROW, read=0),
    "Siglip": Towers({"projection_size": WIDTH}, {}, has_class_token=False, has_padding=False),
}
BY_DEFAULT = ("CLIP",)
SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("gae", "tiba", "input_x_gradient")]
CASES = [
    pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.slow) for name in FAMILIES
]


def build(family: str) -> nn.Module:
    towers = FAMILIES[family]
    return build_transformers(
        f"{family}Model",
        f"{family}Config",
        text_config={**TEXT, **towers.text},
        vision_config=VISION,
        **towers.more,
    )


def make_inputs(family: str, images: int = 2) -> dict[str, Tensor]:
    """Texts of different lengths, with padding where a model may have it."""
    towers = FAMILIES[family]
    padding = towers.text.get("pad_token_id", PADDING)
    ids, mask = make_ids(len(LENGTHS)).clamp(max=PADDING - 1), torch.ones(3, 7, dtype=torch.long)
    for row, length in enumerate(LENGTHS if towers.has_padding else (7, 7, 7)):
        ids[row, length - 1] = END
        ids[row, length:] = padding
        mask[row, length:] = 0
    inputs = {"input_ids": ids, "pixel_values": make_pixels(images, 3, 16, 16)}
    return inputs | ({"attention_mask": mask} if towers.has_padding else {})


def select_pair(inputs: dict[str, Tensor], image: int, text: int) -> dict[str, Tensor]:
    """One image and one text without padding."""
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    length = int(mask[text].sum())
    pair = {
        n: inputs[n][text : text + 1, :length]
        for n in ("input_ids", "attention_mask")
        if n in inputs
    }
    return {**pair, "pixel_values": inputs["pixel_values"][image : image + 1]}


@contextlib.contextmanager
def watch(tower: nn.Module) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Collect the attention maps of a tower's layers, and what enters the layers."""
    maps, hidden, hooks = list[Tensor](), list[Tensor](), []
    (layers,) = [m for m in tower.modules() if isinstance(m, nn.ModuleList) and len(m) == LAYERS]

    def keep_hidden(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden.append(args[0] if args else kwargs["hidden_states"])

    def keep_map(_module: nn.Module, _args: Any, output: Any) -> None:
        found = output[1] if isinstance(output, tuple) else None
        is_map = isinstance(found, Tensor) and found.dim() == 4
        if is_map and not any(found is one for one in maps):
            maps.append(found)

    for layer in layers:
        hooks.append(layer.register_forward_pre_hook(keep_hidden, with_kwargs=True))
        for module in layer.modules():
            if "Attention" in type(module).__name__:
                hooks.append(module.register_forward_hook(keep_map))
    try:
        yield maps, hidden
    finally:
        for hook in hooks:
            hook.remove()


def run_image(eager: Any, inputs: dict[str, Tensor], image: int, text: int) -> Plain:
    pair = select_pair(inputs, image, text)
    leaf = pair["pixel_values"].clone().requires_grad_()
    with watch(eager.vision_model) as (maps, hidden):
        output = eager(**{**pair, "pixel_values": leaf})
    return Plain(
        logit=output.logits_per_image[0, 0],
        maps=maps,
        hidden=hidden,
        inputs=leaf,
        read={0: 1.0},
        units=[1, 2, 3, 4],
        sum_to_units=sum_patches,
        is_image=True,
    )


def run_text(eager: Any, inputs: dict[str, Tensor], at: int, text: int, image: int) -> Plain:
    pair = select_pair(inputs, image, text)
    length = pair["input_ids"].shape[1]
    words = next(m for m in eager.text_model.modules() if getattr(m, "num_embeddings", 0) == WORDS)
    leaf = words(pair["input_ids"]).detach().requires_grad_()
    # A copy, since some models write to it.
    hook = words.register_forward_hook(lambda *_: leaf.clone())
    with watch(eager.text_model) as (maps, hidden):
        output = eager(**pair)
    hook.remove()
    return Plain(
        logit=output.logits_per_text[0, 0],
        maps=maps,
        hidden=hidden,
        inputs=leaf,
        read={at % length: 1.0},
        units=list(range(length)),
    )


@pytest.mark.parametrize("family", CASES)
def test_images(family):
    if not FAMILIES[family].has_class_token:
        pytest.skip("its images are pooled by attention: see test_images_that_attention_pools")
    model, inputs = build(family), make_inputs(family)
    plains = [partial(run_image, copy_eager(model), inputs, image) for image in range(2)]
    check_scores(Explainer(model), inputs, plains, [2, 1], of="pixel_values")


class OpenAttention(nn.Module):
    """Computes what torch's attention computes, and keeps the map, (1, heads, queries, keys)."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention, self.map = attention, torch.empty(0)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:
        one, weights = self.attention, self.attention.in_proj_weight.chunk(3)
        parts = zip((query, key, value), weights, one.in_proj_bias.chunk(3), strict=True)
        q, k, v = ((x @ w.T + b).unflatten(-1, (HEADS, -1)).transpose(1, 2) for x, w, b in parts)
        self.map = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        mixed = (self.map @ v).transpose(1, 2).flatten(2)
        return one.out_proj(mixed), None


@pytest.mark.parametrize("method", ["rollout", *SLOW[:2]])
def test_images_that_attention_pools(method):
    """SigLIP: the row of the query that pools, then the layers."""
    model, inputs = build("Siglip"), make_inputs("Siglip", images=1)
    found = Explainer(model).explain(
        inputs, 1, of="pixel_values", method=method, keep_evidence=method == "tiba"
    )
    eager = copy_eager(model)
    pool = eager.vision_model.head.attention = OpenAttention(eager.vision_model.head.attention)
    leaf = inputs["pixel_values"].clone().requires_grad_()
    with watch(eager.vision_model) as (maps, _):
        logit = eager(**{**inputs, "pixel_values": leaf}).logits_per_image[0, 1]
    assert torch.allclose(found.logits[0, 1], logit, rtol=1e-5)
    every = [*maps, pool.map]
    factors = [one[0].detach() for one in every]
    if method == "tiba":
        factors = [one[0] for one in found.evidence.relevance]
    if method != "rollout":
        gradients = torch.autograd.grad(logit, every)
        factors = [(g[0] * one).clamp(min=0) for g, one in zip(gradients, factors, strict=True)]
    *steps, row = (one.mean(0) for one in factors)
    for step in reversed(steps):
        added = torch.eye(4).double() + step
        row = row @ (added / added.sum(-1, keepdim=True) if method == "rollout" else added)
    # No skip connection goes around the pooling.
    assert torch.allclose(found.scores[0], row[0], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("family", CASES)
def test_texts(family):
    model, inputs = build(family), make_inputs(family)
    at = FAMILIES[family].read
    plains = [partial(run_text, copy_eager(model), inputs, at, text) for text in range(3)]
    check_scores(Explainer(model), inputs, plains, [1, 0, 1], of="input_ids")


@pytest.mark.parametrize("method", ["whence", *SLOW])
@pytest.mark.parametrize("family", CASES)
def test_a_batch_is_as_each_pair_alone(family, method):
    """Also as many texts as images, which must not be taken for pairs."""
    model, inputs = build(family), make_inputs(family, images=3)
    explainer = Explainer(model)
    of_images = explainer.explain(inputs, [2, 0, 1], of="pixel_values", method=method).scores
    of_texts = explainer.explain(inputs, [1, 2, 0], of="input_ids", method=method).scores
    for image, text in ((0, 2), (1, 0), (2, 1)):
        pair = select_pair(inputs, image, text)
        alone = explainer.explain(pair, 0, of="pixel_values", method=method).scores[0]
        assert torch.allclose(of_images[image], alone, rtol=1e-4, atol=1e-5 * float(alone.max()))
    for text, image in ((0, 1), (1, 2), (2, 0)):
        pair = select_pair(inputs, image, text)
        alone = explainer.explain(pair, 0, of="input_ids", method=method).scores[0]
        found, rest = of_texts[text][: len(alone)], of_texts[text][len(alone) :]
        assert torch.allclose(found, alone, rtol=1e-4, atol=1e-5 * float(alone.abs().max()))
        assert not rest.any()
