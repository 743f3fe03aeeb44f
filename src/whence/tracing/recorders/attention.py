"""Attention in one call, as the operations that it consists of."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence._util.torch_internals import without_torch_function
from whence.tracing.calls import TorchCall
from whence.tracing.ops.base import is_traced
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.products import MatMul
from whence.tracing.ops.softmax import Softmax, masked_softmax
from whence.tracing.recording import Recording

_LEAST_QUERIES = 16  # are worked on together: fewer would take too long


def record_attention(recording: Recording, call: TorchCall) -> Tensor:
    """Record ``scaled_dot_product_attention``."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    return decompose_attention(recording, **given)


def decompose_attention(
    recording: Recording,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001  explained as in evaluation mode
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Record ``scaled_dot_product_attention`` as the operations that it consists of."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    groups = 1
    if enable_gqa:
        of_keys, of_values = (query.shape[-3] // x.shape[-3] for x in (key, value))
        groups = of_keys if of_keys == of_values else 1
        with recording.active():
            key = key.repeat_interleave(of_keys, -3)
            value = value.repeat_interleave(of_values, -3)
    with without_torch_function():
        output = _record_without_maps(
            recording, query, key, value, attn_mask, scale, is_causal, groups
        )
        if output is not None:
            return output
        if is_causal:
            size = query.shape[-2], key.shape[-2]
            attn_mask = torch.ones(size, dtype=torch.bool, device=query.device).tril()
        if is_traced(query) and is_traced(key) and is_traced(value) and not is_traced(attn_mask):
            return _record_parts(recording, query, key, value, attn_mask, scale)
    with recording.active():
        scores = query @ key.mT
        if is_traced(attn_mask):
            return (scores * scale + attn_mask).softmax(-1) @ value
    mask = None if attn_mask is None else attn_mask.detach()
    if scores.requires_grad:
        weights = recording.apply(Softmax(scale, mask), scores)
    else:
        weights = masked_softmax(scores, scale, mask)
    with recording.active():
        return weights @ value


def _record_parts(
    recording: Recording,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """Record scores, softmax and product, all of which depend on the input, without more calls."""
    keys = recording.mark_routing(key.mT, (key.grad_fn,))
    scores = recording.apply(MatMul(), query, keys)
    softmax = Softmax(scale, None if mask is None else mask.detach())
    weights, product = recording.apply(softmax, scores), MatMul()
    output = recording.apply(product, weights, value)
    recording.note_attention(product, weights, value)
    return output


def _record_without_maps(
    recording: Recording,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    groups: int,
) -> Tensor | None:
    """Record attention as one operation that keeps no maps; None if they are small enough."""
    all_traced = all(map(is_traced, (query, key, value)))
    constant = mask is None or not mask.requires_grad or mask.is_leaf
    if query.dim() != 4 or not (all_traced and constant):
        return None
    bytes_of_query = query.shape[0] * query.shape[1] * key.shape[-2] * query.element_size()
    bounds = recording.bounds
    largest = bounds.map if bounds.kept_map is None else bounds.kept_map
    if bytes_of_query * query.shape[-2] <= largest:
        return None
    queries_at_once = max(_LEAST_QUERIES, int(bounds.map // bytes_of_query))
    if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        shared = torch.broadcast_shapes(query.shape[:2], key.shape[:2], value.shape[:2])  # type: ignore[no-untyped-call]
        query, key, value = (
            recording.mark_routing(x.expand(*shared, -1, -1), (x.grad_fn,))
            for x in (query, key, value)
        )
    mask = None if mask is None else mask.detach()
    attention = ChunkedAttention(scale, mask, queries_at_once, causal=causal, groups=groups)
    attention.has_maps = bounds.makes_maps
    output = recording.apply(attention, query, key, value)
    recording.note_chunked_attention(attention, (*query.shape[:-1], key.shape[-2]), output)
    return output
