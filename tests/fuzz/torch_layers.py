"""Blocks that are torch's own encoder layers, and what the oracle knows them to compute."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tests.fuzz import ops
from tests.fuzz.plans import BlockPlan


class TorchBlock(nn.Module):
    """An ``nn.TransformerEncoderLayer``."""

    window: tuple[int, int] | None = None

    def __init__(self, plan: BlockPlan, width: int, tokens_first: bool) -> None:
        super().__init__()
        self.tokens_first = tokens_first
        self.activation = "relu" if plan.mlps[0] == "relu" else "gelu"
        self.layer = nn.TransformerEncoderLayer(
            width,
            plan.attention.heads,
            width + 3,
            activation=self.activation,
            batch_first=not tokens_first,
            norm_first=plan.norm == "pre",
        )

    def forward(
        self, x: Tensor, first: Tensor, allowed: Tensor | None, causal: bool, padded: bool
    ) -> Tensor:
        layer = self.layer
        if ops.current() is None:
            return layer(x, *self._make_masks(allowed, causal, padded))
        if layer.norm_first:
            x = ops.add_branch(x, self._attend(ops.norm(layer.norm1, x), x, allowed))
            return ops.add_branch(x, self._feed(ops.norm(layer.norm2, x)))
        x = ops.norm(layer.norm1, ops.add_branch(x, self._attend(x, x, allowed)))
        return ops.norm(layer.norm2, ops.add_branch(x, self._feed(x)))

    def _make_masks(
        self, allowed: Tensor | None, causal: bool, padded: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        if allowed is None:
            return None, None
        if padded and not causal:
            return None, ~allowed[:, 0, 0]
        if not padded:
            return ~allowed[0, 0], None
        heads = self.layer.self_attn.num_heads
        return (~allowed).expand(-1, heads, -1, -1).flatten(0, 1), None

    def _feed(self, x: Tensor) -> Tensor:
        y = ops.function(ops.linear(self.layer.linear1, x), self.activation)
        return ops.linear(self.layer.linear2, y)

    def _attend(self, x: Tensor, entering: Tensor, allowed: Tensor | None) -> Tensor:
        return attend_by_module(self.layer.self_attn, x, entering, allowed, self.tokens_first)


def attend_by_module(
    module: nn.MultiheadAttention,
    x: Tensor,
    entering: Tensor,
    allowed: Tensor | None,
    tokens_first: bool,
) -> Tensor:
    """What ``nn.MultiheadAttention`` computes, under a tape."""
    tape = ops.current()
    if tape is None:
        raise RuntimeError("This is the oracle's way to compute it.")
    x = x.transpose(0, 1) if tokens_first else x
    width, heads = x.shape[-1], module.num_heads
    weights, biases = module.in_proj_weight.split(width), module.in_proj_bias.split(width)
    q, k, v = (tape.rules.linear(x, w, b) for w, b in zip(weights, biases, strict=True))
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    added = None
    if allowed is not None:
        added = torch.zeros_like(allowed, dtype=x.dtype).masked_fill(~allowed, -math.inf)
    mixed = ops.attend(q, k, v, entering, lambda *_: q, added=added, tokens_first=tokens_first)
    mixed = mixed.transpose(1, 2).flatten(2)
    mixed = mixed.transpose(0, 1) if tokens_first else mixed
    return ops.linear(module.out_proj, mixed)
