"""AttnLRP of language models, against hooks that change the gradients of transformers' own modules.

Each rule of AttnLRP is one change of the backward pass: products of two give half to each factor,
norms and activations have the slope f(x) / x.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.families.models import (
    HEADS,
    TEXT,
    WIDTH,
    build_transformers,
    copy_eager,
    make_ids,
    replace_embeddings,
)
from whence import Explainer

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GQA = {**TEXT, **SPECIAL, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
GPT = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_inner": 24, "vocab_size": 40}
FAMILIES = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", GQA),
    "Mistral": ("MistralForCausalLM", "MistralConfig", {**GQA, "sliding_window": 4}),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GQA),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GQA),
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GQA, "query_pre_attn_scalar": 4}),
    "Olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GQA),
    "GPT2": ("GPT2LMHeadModel", "GPT2Config", {**GPT, **SPECIAL}),
}
TARGET, AGAINST = [3, 7], [5, 2]


def scale_gradient(x: Tensor, factors: float | Tensor) -> Tensor:
    """The same numbers, whose gradient is multiplied."""
    return x * factors + (x * (1 - factors)).detach()


def hold_slope(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """The function as x times f(x) / x; of a LayerNorm, x is without its mean."""
    x, bias = args[0], 0
    if isinstance(module, nn.LayerNorm):
        x, bias = x - x.mean(-1, keepdim=True), module.bias
    return x * ((output - bias) / x).detach() + bias


def scale_output(factors: float | Tensor, _module: nn.Module, _args: Any, output: Tensor) -> Tensor:
    return scale_gradient(output, factors)


def scale_input(factor: float, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (scale_gradient(args[0], factor), *args[1:])


def choose_hook(name: str, module: nn.Module) -> Callable[..., Any] | None:
    """The rule for a module's output: two products halve queries and keys, and one the values."""
    quarter, half = (torch.full((WIDTH,), factor).double() for factor in (0.25, 0.5))
    if type(module).__name__.endswith(("RMSNorm", "LayerNorm")) or name in ("act_fn", "act"):
        return hold_slope
    if name in ("q_proj", "k_proj"):
        return partial(scale_output, 0.25)
    if name == "v_proj":
        return partial(scale_output, 0.5)
    return partial(scale_output, torch.cat([quarter, quarter, half])) if name == "c_attn" else None


@contextmanager
def follow_rules(model: nn.Module) -> Iterator[None]:
    """While this is entered, gradients pass a model by the rules of AttnLRP."""
    hooks = []
    for path, module in model.named_modules():
        name = path.rpartition(".")[2]
        hook = choose_hook(name, module)
        if hook is not None:
            hooks.append(module.register_forward_hook(hook))
        if name == "down_proj":  # the product of gate and values comes in
            hooks.append(module.register_forward_pre_hook(partial(scale_input, 0.5)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_scores_are_input_times_the_changed_gradient(family, attention):
    name, config, sizes = FAMILIES[family]
    model, ids = build_transformers(name, config, attention, **sizes), make_ids()
    eager = copy_eager(model)
    with follow_rules(eager), replace_embeddings(eager) as leaves:
        logits = eager(ids).logits[:, -1]
    explain = partial(Explainer(model).explain, {"input_ids": ids}, TARGET, method="attnlrp")
    one, contrast = explain().scores, explain(against=AGAINST).scores
    rows = torch.arange(len(ids))
    target, against = logits[rows, TARGET].sum(), logits[rows, AGAINST].sum()
    for scores, scalar in ((one, target), (contrast, target - against)):
        (gradient,) = torch.autograd.grad(scalar, leaves[0], retain_graph=True)
        expected = (leaves[0] * gradient).sum(-1).detach()
        assert expected.abs().max() > 0
        # Norms of transformers compute in float32.
        assert (scores - expected).abs().max() < 1e-5 * expected.abs().max()
