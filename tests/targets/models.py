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
