"""What the target reads of a flow of tokens: weights of the tokens that leave each layer."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.layout import FoundLayout
from whence.tracing.backward import propagate_backward
from whence.tracing.flow.binding import find_leaving
from whence.tracing.flow.flow import TokenFlow
from whence.tracing.graph import find_layers
from whence.tracing.trace import Trace


def read_streams(
    trace: Trace, flow: TokenFlow, targets: Tensor, layout: FoundLayout
) -> list[Tensor]:
    """Weights of the tokens that leave each layer, (targets, batch, tokens); they sum to 1.

    A target reads tokens where it depends on them with no layer between. Where it reads one layer,
    tokens that stand for a part of the input weigh alike, and so do those that do not: a class
    token, say. Where it reads several, each token weighs as much as the target depends on it.

    Args:
        trace: The recorded forward pass.
        flow: How tokens pass the layers.
        targets: As for `Trace.make_seeds`.
        layout: What the user stated of pooled tokens.
    """
    dependence = _measure_dependence(trace, flow, targets)
    total = sum((one.sum(-1, keepdim=True) for one in dependence), torch.zeros(()))
    total = total.masked_fill(total == 0, 1)
    look_at = trace.guard.look_at
    read = [number for number, one in enumerate(dependence) if look_at(one.any())]
    if len(read) != 1:
        return [one / total for one in dependence]
    (last,) = read
    own, weights = dependence[last], torch.zeros_like(dependence[last])
    if layout.pooled is not None and max(layout.pooled) < own.shape[-1]:
        weights[..., list(layout.pooled)] = 1 / len(layout.pooled)
    else:
        is_input = mark_standing(flow, last, layout, own)
        for group in (is_input, ~is_input):
            is_read = (own > 0) & group
            share = (own * group).sum(-1, keepdim=True) / total
            weights = weights + torch.where(is_read, share / is_read.sum(-1, keepdim=True), 0)
    return [weights if number == last else one for number, one in enumerate(dependence)]


def carry_reads(flow: TokenFlow, reads: list[Tensor], tokens: int) -> Tensor:
    """Weights of the tokens of the input, as the target reads them along residual streams."""
    pooled = reads[0].new_zeros(*reads[0].shape[:-1], tokens)
    for read, stands_for in zip(reads, flow.stands_for, strict=True):
        if stands_for is not None:
            pooled = pooled + stands_for.pull(read)
    return pooled


def mark_standing(flow: TokenFlow, number: int, layout: FoundLayout, like: Tensor) -> Tensor:
    """Mark the tokens of a layer that stand for a part of the input: (batch, tokens)."""
    stands_for = flow.stands_for[number]
    if stands_for is None:
        return torch.zeros(like.shape[-2:], dtype=torch.bool, device=like.device)
    of_input = layout.mark_input_tokens(like.device).to(like.dtype)
    return stands_for.push(of_input.expand(like.shape[-2], -1)) > 0


def _measure_dependence(trace: Trace, flow: TokenFlow, targets: Tensor) -> list[Tensor]:
    edges = [find_leaving(trace, layer) for layer in find_layers(trace)]
    seeds = trace.make_seeds(targets)
    with torch.inference_mode(False), torch.no_grad():
        values = dict(
            propagate_backward(
                trace.logits, [seeds], [None], edges, batch=trace.batch, several=True, ends=True
            )
        )
    read = [
        layer.leaving.reduce(values[number][0].abs(), "sum")
        for number, layer in enumerate(flow.layers)
    ]
    # Of layers that are added in one sum, the first stands for all.
    pairs = zip(flow.layers, read, strict=True)
    return [one if layer.beside is None else torch.zeros_like(one) for layer, one in pairs]
