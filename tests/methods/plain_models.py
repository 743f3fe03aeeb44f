"""Small models in float64 that tests of methods also call directly, without whence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo import CASES, HandWrittenViT, build_model, make_texts

# With a class token; with average pooling; with a class token and a rectangle of patches.
IMAGES = ["timm-vit-fused", "timm-vit-average-fused", "timm-vit-rectangle-fused"]
PATCH = 8


@dataclass
class Plain:
    """A model in float64, its batch for whence, and its forward as a function of the inputs."""

    model: nn.Module
    batch: Any
    inputs: Tensor
    forward: Callable[..., Tensor]
    arguments: tuple[Tensor, ...] = ()

    def select(self, index: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Select the input and the other arguments of one sample."""
        return self.inputs[index : index + 1], tuple(a[index : index + 1] for a in self.arguments)


def build_image_model(name: str) -> Plain:
    model = build_model(CASES[name]).double().requires_grad_(False)
    pixels = CASES[name].inputs().double()
    return Plain(model, pixels, pixels, model)


def build_text_model(name: str = "Bert-sdpa") -> Plain:
    """Build a BERT on padded texts, as a function of embeddings and attention mask."""
    model = build_model(CASES[name]).double().requires_grad_(False)
    batch = make_texts()

    def forward(embeddings: Tensor, mask: Tensor) -> Tensor:
        return model(inputs_embeds=embeddings, attention_mask=mask).logits

    embeddings = model.get_input_embeddings()(batch["input_ids"])
    return Plain(model, batch, embeddings, forward, (batch["attention_mask"],))


def split_patches(pixels: Tensor) -> Tensor:
    """Split (..., height, width) into (..., patches, pixels of a patch), one by one."""
    rows, columns = pixels.shape[-2] // PATCH, pixels.shape[-1] // PATCH
    found = [
        pixels[..., y * PATCH : (y + 1) * PATCH, x * PATCH : (x + 1) * PATCH].flatten(-2)
        for y in range(rows)
        for x in range(columns)
    ]
    return torch.stack(found, -2)


def add_padding(batch: dict[str, Tensor], more: int = 5) -> dict[str, Tensor]:
    """Add padding to the end of texts."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    return {
        "input_ids": torch.cat([ids, torch.ones(len(ids), more, dtype=ids.dtype)], 1),
        "attention_mask": torch.cat([mask, torch.zeros(len(ids), more, dtype=mask.dtype)], 1),
    }


def to_double(inputs: Any) -> Any:
    """Convert floating-point inputs to float64."""
    if isinstance(inputs, Tensor):
        return inputs.double()
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def build_constant_model() -> HandWrittenViT:
    """Build a model whose logits are constant."""
    model = HandWrittenViT()
    with torch.no_grad():
        model.head.weight.zero_()
    return model


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Compute the largest difference, relative to the largest expected number."""
    assert found.shape == expected.shape
    assert expected.abs().max() > 0
    return ((found - expected).abs().max() / expected.abs().max()).item()
