"""Attention: fused calls written out, and the site where a map meets the values it weighs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.tracing.operations import Function

if TYPE_CHECKING:
    from whence.tracing.recorder import Recorder

SOFTMAX = "softmax"
_FURTHEST = 8


@dataclass
class AttentionSite:
    """One attention map of the forward pass.

    Attributes:
        weights: The map, as it came out of softmax; part of the graph, so that readings end here.
        where: The module it was computed in.
    """

    weights: Tensor
    where: str

    def by_head(self, reading: Tensor, batch: int) -> Tensor:
        """The map, or a reading of it with leading dimensions, as (..., batch, heads, q, k)."""
        extra = reading.dim() - self.weights.dim()
        return reading.reshape(*reading.shape[:extra], batch, -1, *self.weights.shape[-2:])


def spelled_out_attention(
    record: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001  explained as in evaluation mode
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What ``scaled_dot_product_attention`` computes, call by call."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if is_causal:
        attn_mask = torch.ones(
            query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device
        ).tril()
    with record:
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        scores = query @ key.mT
        if attn_mask is not None and attn_mask.requires_grad and not attn_mask.is_leaf:
            return (scores * scale + attn_mask).softmax(-1) @ value
    mask = None if attn_mask is None else attn_mask.detach()
    if scores.requires_grad:
        softmax = Function("pass", lambda s: masked_softmax(s, scale, mask), name=SOFTMAX)
        weights = record.apply(softmax, scores)
    else:
        weights = masked_softmax(scores, scale, mask)
    with record:
        return weights @ value


def masked_softmax(scores: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Softmax of scaled scores under a boolean or additive mask; a row with no key left is zero."""
    if mask is None:
        return torch.softmax(scores * scale, -1)
    blocked = ~mask if mask.dtype == torch.bool else mask == -math.inf
    empty = blocked.all(-1, keepdim=True)
    if mask.dtype == torch.bool:
        scores = (scores * scale).masked_fill(blocked & ~empty, -math.inf)
    else:
        scores = scores * scale + mask.masked_fill(empty, 0)
    return torch.softmax(scores, -1).masked_fill(empty, 0)


def softmax_behind(tensor: Tensor) -> Function | None:
    """The softmax that a tensor came out of, looking back through what only moves or scales it."""
    node = tensor.grad_fn
    for _ in range(_FURTHEST):
        if node is None:
            return None
        operation = getattr(node, "operation", None)
        if isinstance(operation, Function) and operation.name == SOFTMAX:
            return operation
        if operation is not None and operation.kind != "pass":
            return None
        behind = [n for n, _ in node.next_functions if n is not None]
        if len(behind) != 1:
            return None
        node = behind[0]
    return None
