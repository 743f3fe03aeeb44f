"""What image models themselves give for one sample: maps and hidden states, collected by hooks."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from tests.families.formulas import Plain, center, sum_patches

Head = Callable[[Any], Tensor]


def run_transformers(
    eager: nn.Module,
    pixels: Tensor,
    read_logit: Head,
    read: dict[int, float],
    units: Sequence[int],
    layers: int | None = None,
    name: str = "pixel_values",
    read_centered: Head | None = None,
) -> Plain:
    """Run a model of transformers on one sample; the logit depends on its first ``layers``.

    What is read less the mean of what competes with it is by default that of a row of logits.
    """
    leaf = pixels.clone().requires_grad_()
    output = eager(**{name: leaf}, output_attentions=True, output_hidden_states=True)
    maps = list(output.attentions)[:layers]
    return Plain(
        logit=read_logit(output),
        centered=(read_centered or (lambda output: read_logit(center(output))))(output),
        maps=maps,
        hidden=list(output.hidden_states[: len(maps)]),
        inputs=leaf,
        read=read,
        units=list(units),
        sum_to_units=sum_patches,
        is_image=True,
        keeps_identity=False,
    )


def run_timm(
    model: nn.Module, pixels: Tensor, target: int, read: dict[int, float], units: Sequence[int]
) -> Plain:
    """Run a ViT of timm on one sample, with its attention computed in the open."""
    plain, maps, hidden = copy.deepcopy(model), [], []
    for module in plain.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
        if hasattr(module, "attn_drop") and isinstance(module.attn_drop, nn.Module):
            module.attn_drop.register_forward_hook(lambda _m, args, _o: maps.append(args[0]))
    for block in plain.blocks:
        block.register_forward_pre_hook(lambda _m, args: hidden.append(args[0]))
    leaf = pixels.clone().requires_grad_()
    logits = plain(leaf)
    return Plain(
        logit=logits[0, target],
        centered=center(logits)[0, target],
        maps=maps,
        hidden=hidden,
        side_by_side=len(maps) // len(hidden),
        inputs=leaf,
        read=read,
        units=list(units),
        sum_to_units=sum_patches,
        is_image=True,
        keeps_identity=False,
    )
