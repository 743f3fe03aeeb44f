"""A case of the survey: a model of a library in a small random configuration, with a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Tensor | dict[str, Any]
WORDS, WIDTH, LABELS, SEED = 60, 16, 3, 7
PAD, BOS, EOS, IMAGE, MASK = 0, 1, 2, 3, 4
SPECIAL = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
TEXT = {
    **SPECIAL,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "num_labels": LABELS,
}
VISION = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": LABELS,
}


@dataclass(frozen=True)
class SurveyCase:
    """A model and a task, with a batch and what a user would ask of it.

    Attributes:
        library: The library that the model is of.
        model: The name of its class, or its name in the library.
        family: The family that it belongs to.
        task: What the model does.
        build: Builds the model with random weights.
        make_inputs: Makes a batch of two.
        variant: What is particular about this configuration, where a model occurs twice.
        of: The input that gets scores; None is the model's main input.
        target: What is explained; None is the model's own decision.
        output: What reads the logits from what the model returns, as `Explainer` takes it.
    """

    library: str
    model: str
    family: str
    task: str
    build: Callable[[], nn.Module]
    make_inputs: Callable[[], Inputs]
    variant: str = ""
    of: str | None = None
    target: Any = None
    output: Callable[[Any], Tensor] | None = None

    @property
    def name(self) -> str:
        """The name of the case, which no other has."""
        parts = [f"{self.library}:{self.model}", self.variant, self.of]
        return ", ".join(part for part in parts if part)


def build_model(case: SurveyCase, seed: int = SEED) -> nn.Module:
    """Build the model of a case, with noise on all weights, so that none of them is zero."""
    torch.manual_seed(seed)
    model = case.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def build_transformers(model: str, config: str, sizes: Mapping[str, Any]) -> nn.Module:
    """Build a model of transformers from the names of its class and of its configuration."""
    import transformers

    known = getattr(transformers, config)(**sizes)
    built: nn.Module = getattr(transformers, model)._from_config(known)
    return built


def of_transformers(
    model: str,
    family: str,
    task: str,
    sizes: Mapping[str, Any],
    make_inputs: Callable[[], Inputs],
    config: str | None = None,
    **facts: Any,
) -> SurveyCase:
    """Make a case of transformers; the configuration is by default named like the family."""
    config = config or f"{family}Config"
    return SurveyCase(
        "transformers",
        model,
        family,
        task,
        lambda: build_transformers(model, config, sizes),
        make_inputs,
        **facts,
    )


def random_numbers(*shape: int) -> Tensor:
    """Make random numbers of a shape, always the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED))


def make_ids(batch: int = 2, length: int = 8) -> Tensor:
    """Make token ids without special tokens among them."""
    return torch.randint(8, WORDS, (batch, length), generator=torch.Generator().manual_seed(SEED))


def make_text(length: int = 8) -> dict[str, Any]:
    """Make two texts with a first and a last token of their own, the second one padded."""
    ids = make_ids(2, length)
    ids[:, 0], ids[:, -1] = BOS, EOS
    ids[1, -3:] = torch.tensor([EOS, PAD, PAD])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def make_photos(size: int = 32) -> dict[str, Any]:
    """Make two square photos, as transformers take them."""
    return {"pixel_values": random_numbers(2, 3, size, size)}
