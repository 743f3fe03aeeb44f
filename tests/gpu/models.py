"""Small models with random weights, and their inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn

from whence import targets


class GpuCase(NamedTuple):
    """A model with inputs, and what of it is explained."""

    build: Callable[[], nn.Module]
    inputs: dict[str, Tensor]
    request: dict[str, Any]


_WIDTH = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
_IDS = torch.arange(3 * 24).reshape(3, 24).mul(7).add(3) % 90 + 5
_LENGTHS = torch.tensor([[24], [15], [20]])
_PIXELS = torch.randn(3, 3, 48, 48, generator=torch.Generator().manual_seed(1))


def _build_vit() -> nn.Module:
    config = transformers.ViTConfig(
        **_WIDTH, intermediate_size=128, image_size=48, patch_size=8, num_labels=10
    )
    return transformers.ViTForImageClassification(config)


def _build_bert() -> nn.Module:
    config = transformers.BertConfig(**_WIDTH, intermediate_size=128, vocab_size=100, num_labels=4)
    return transformers.BertForSequenceClassification(config)


def build_llama(layers: int = 4) -> nn.Module:
    """A decoder with rotary positions and fewer heads of keys than of queries."""
    sizes = _WIDTH | {"num_hidden_layers": layers}
    config = transformers.LlamaConfig(
        **sizes,
        intermediate_size=96,
        num_key_value_heads=2,
        vocab_size=100,
        initializer_range=0.2,
        max_position_embeddings=8192,
    )
    return transformers.LlamaForCausalLM(config)


def _build_swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=48,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=3,
        num_labels=10,
    )
    return transformers.SwinForImageClassification(config)


CASES = {
    "vit": GpuCase(_build_vit, {"pixel_values": _PIXELS}, {"target": 1}),
    "bert": GpuCase(
        _build_bert,
        {"input_ids": _IDS, "attention_mask": (torch.arange(24) < _LENGTHS).long()},
        {"target": 1},
    ),
    "llama": GpuCase(build_llama, {"input_ids": _IDS}, {"target": targets.token(token=7)}),
    "swin": GpuCase(_build_swin, {"pixel_values": _PIXELS}, {"target": 1}),
}


def build(name: str, device: str = "cpu", dtype: torch.dtype = torch.float64) -> nn.Module:
    """Build a model; its weights are the same on every device."""
    torch.manual_seed(0)
    return CASES[name].build().eval().to(device, dtype)


def give(name: str, device: str = "cpu", dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Give the inputs of a model on a device."""
    inputs = CASES[name].inputs
    return {k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in inputs.items()}
