"""Models with random weights, which cost as much as trained ones, and inputs for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn

SIZES = {
    "tiny": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "small": {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}
SMOKE = "smoke"  # a model for a run of seconds, whose figures mean nothing
_SMOKE_SIZE = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
LETTERS = {"tiny": "Ti", "small": "S", "base": "B"}
PATCH, WORDS = 16, 128
LLAMA_SHAPES = {
    "8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    },
    "1b": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128256,
    },
    "small": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 1024,
        "vocab_size": 8000,
    },
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 1000,
    },
}


def build_classifier(
    size: str,
    device: torch.device,
    *,
    family: str = "vit",
    layers: int | None = None,
    image: int | None = None,
    words: int = WORDS,
) -> nn.Module:
    """A ViT, or a BERT of the same width, of 12 layers unless told otherwise."""
    smoke = size == SMOKE
    sizes = {
        "num_hidden_layers": layers or (2 if smoke else 12),
        "num_labels": 20 if smoke else 1000,
        **(_SMOKE_SIZE if smoke else SIZES[size]),
    }
    torch.manual_seed(0)
    if family == "bert":
        config = transformers.BertConfig(**sizes, max_position_embeddings=max(words, 512))
        return transformers.BertForSequenceClassification(config).to(device).eval()
    config = transformers.ViTConfig(image_size=image or default_image(size), **sizes)
    return transformers.ViTForImageClassification(config).to(device).eval()


def name_classifier(size: str, family: str = "vit") -> str:
    """How tables call it."""
    if size == SMOKE:
        return f"a model too small to mean anything ({family})"
    if family == "bert":
        return f"a BERT of the width of ViT-{LETTERS[size]}, {WORDS} tokens"
    return f"ViT-{LETTERS[size]}/{PATCH}"


def default_image(size: str) -> int:
    """Pixels of a side."""
    return 64 if size == SMOKE else 224


def make_inputs(
    batch: int, device: torch.device, *, family: str = "vit", image: int = 224, words: int = WORDS
) -> dict[str, Tensor]:
    """Photos, or texts."""
    if family == "bert":
        return {"input_ids": torch.randint(5, 30000, (batch, words), device=device)}
    return {"pixel_values": torch.randn(batch, 3, image, image, device=device)}


def build_llama(
    shape: str, tokens: int, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> nn.Module:
    """A language model for inputs of so many tokens."""
    config = transformers.LlamaConfig(**LLAMA_SHAPES[shape], max_position_embeddings=tokens)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    with device:
        torch.set_default_dtype(dtype)
        try:
            return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
        finally:
            torch.set_default_dtype(before)


def run_forward(model: nn.Module, inputs: dict[str, Tensor], precision: str | None = None) -> Any:
    """A plain forward pass without gradients."""
    with torch.no_grad(), _use_precision(inputs, precision):
        return model(**inputs, **_list_settings(model))


def run_backward(
    model: nn.Module, inputs: dict[str, Tensor], precision: str | None = None
) -> Tensor:
    """A forward pass, and autograd's gradient of one logit of each sample at the input."""
    ((name, main),) = inputs.items()
    if not main.is_floating_point():
        name, main = "inputs_embeds", model.get_input_embeddings()(main)
    main = main.detach().requires_grad_()
    with _use_precision(inputs, precision):
        logits = model(**{name: main}, **_list_settings(model)).logits
        rows = logits[:, -1] if logits.dim() == 3 else logits
        return torch.autograd.grad(rows[:, 0].sum(), main)[0]


@contextmanager
def _use_precision(inputs: dict[str, Tensor], precision: str | None) -> Iterator[None]:
    """Compute matrix products in TF32 or bfloat16, as an explainer does with that precision."""
    device, before = next(iter(inputs.values())).device.type, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _list_settings(model: nn.Module) -> dict[str, bool]:
    """A language model keeps keys and values for tokens to come unless it is told not to."""
    return {"use_cache": False} if hasattr(model.config, "num_key_value_heads") else {}
