"""Links of tokens by attention: two tokens are linked as far as one attends to the other."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.tracing.flow.flow import TokenFlow
from whence.tracing.graph import is_attention_pooling

Links: TypeAlias = Callable[[Tensor], Tensor]
"""Multiplies columns, (n, batch, tokens), by the links of all layers, A + A^T."""


def sum_attention(evidence: Evidence, maps: Iterable[Tensor], first: int) -> Links | None:
    """Sum the attention of all layers; None if no token attends to others.

    Args:
        evidence: What the maps are of.
        maps: (batch, queries, keys) for each layer, the last one first.
        first: The first layer.
    """
    if evidence.flow is not None:
        flow, kept = evidence.flow, list(maps)
        return lambda columns: link_tokens_of_flow(flow, kept, columns, first)
    summed: Tensor | None = None
    pools = is_attention_pooling(evidence.layers)
    for number, weights in enumerate(maps):
        if number > 0 or not pools:  # attention pooling links no two tokens
            summed = weights if summed is None else summed + weights
    if summed is None:
        return None
    attention = summed

    def link(columns: Tensor) -> Tensor:
        # Of A and of its transpose by turns, and of all targets at once: A + A^T is never made.
        by_token = columns.permute(1, 2, 0)
        return (attention @ by_token + attention.mT @ by_token).permute(2, 0, 1)

    return link


def link_tokens_of_flow(
    flow: TokenFlow, maps: Sequence[Tensor], columns: Tensor, first: int
) -> Tensor:
    """Multiply columns, (n, batch, tokens), by the links of tokens, A + A^T, over all layers.

    Attention links tokens of the input that queries and keys are made of.
    """
    linked = torch.zeros_like(columns)
    numbers = reversed(range(first, len(flow.layers)))
    for number, attention in zip(numbers, maps, strict=True):
        layer, of_queries = flow.layers[number], flow.stands_for[number]
        of_keys = flow.find_keys(number)
        if of_queries is None or not of_keys:
            continue
        at_keys = sum((one.push(columns) for one in of_keys[1:]), of_keys[0].push(columns))
        linked = linked + of_queries.pull(layer.multiply_keys(attention, at_keys))
        back = layer.multiply(of_queries.push(columns), attention)
        for one in of_keys:
            linked = linked + one.pull(back)
    return linked


def average_over_linked(values: Tensor, mask: Tensor, links: Links | None) -> Tensor:
    """Average a value over the tokens of a mask that attention links to each of them.

    A token that is linked to none, or not in the mask, keeps its own.

    Args:
        values: (targets, batch, tokens).
        mask: The same.
        links: As `sum_attention` gives them.
    """
    if links is None:
        return values
    weights = mask.to(values.dtype).expand_as(values)
    total, sums = links(torch.cat([weights, weights * values])).chunk(2)
    return torch.where(mask & (total > 0), sums / total.masked_fill(total == 0, 1), values)
