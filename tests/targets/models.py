"""Small random models with outputs of many kinds, in float64, and gradients written plainly."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.families.formulas import sum_patches
from tests.families.models import TEXT, build_transformers, make_ids, make_pixels

Scalar = Callable[[Any], Tensor]


def build_decoder() -> nn.Module:
    """A language model."""
    names = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "n_positions": 32}
    return build_transformers("GPT2LMHeadModel", "GPT2Config", **names)


def build_encoder(task: str, **sizes: Any) -> nn.Module:
    """A model of texts with another head."""
    return build_transformers(f"Bert{task}", "BertConfig", **TEXT, **sizes)


def make_batch(padding: str = "right") -> dict[str, Tensor]:
    """Two texts of 7 and 4 tokens."""
    ids, mask = make_ids(2, 7), torch.ones(2, 7, dtype=torch.long)
    mask[1, slice(4, None) if padding == "right" else slice(0, 3)] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def select_text(batch: dict[str, Tensor], sample: int) -> dict[str, Tensor]:
    """One text without its padding."""
    real = batch["attention_mask"][sample].bool()
    return {name: value[sample, real][None] for name, value in batch.items()}


def multiply_words(model: nn.Module, inputs: dict[str, Tensor], read: Scalar) -> Tensor:
    """x * gradient of a scalar at the embeddings of one text, summed over the width."""
    leaf = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    others = {name: value for name, value in inputs.items() if name != "input_ids"}
    (gradient,) = torch.autograd.grad(read(model(inputs_embeds=leaf, **others)), leaf)
    return (leaf * gradient).sum(-1).detach()[0]


def multiply_pixels(model: nn.Module, pixels: Tensor, read: Scalar) -> Tensor:
    """x * gradient of a scalar at the pixels of one image, summed over patches of 8."""
    leaf = pixels.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(read(model(pixel_values=leaf)), leaf)
    return sum_patches((leaf * gradient).detach()[0])


def make_images(batch: int = 2) -> Tensor:
    """Images of 16 by 16 pixels."""
    return make_pixels(batch, 3, 16, 16)


DENSE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "patch_size": 8,
}


def build_query_segmenter() -> nn.Module:
    """A model that finds masks by queries."""
    return build_transformers(
        "EomtForUniversalSegmentation",
        "EomtConfig",
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        mlp_ratio=2,
        image_size=16,
        patch_size=8,
        num_queries=3,
        num_blocks=1,
        num_upscale_blocks=1,
        id2label={0: "sky", 1: "grass", 2: "road"},
    )


def check_pixels(result: Any, model: nn.Module, reads: list[Scalar]) -> None:
    """Check x * gradient of a scalar for each image of `make_images`."""
    pixels = make_images()
    for sample, read in enumerate(reads):
        expected = multiply_pixels(model, pixels[sample : sample + 1], read)
        assert torch.allclose(result.scores[sample], expected, rtol=1e-6, atol=1e-9)
