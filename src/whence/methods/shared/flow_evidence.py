"""Evidence of the layers of a flow, taken to the tokens of the input."""

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.tracing.flow.flow import FlowLayer, TokenFlow


def sum_flow_evidence(evidence: Evidence, flow: TokenFlow, first: int) -> tuple[Tensor, Tensor]:
    """Sum the positive evidence at the layers' inputs, and mark tokens that the class depends on.

    A layer's tokens share their evidence evenly among those of the input that they are made of.
    Both are (classes, batch, tokens).
    """
    summed = torch.zeros_like(evidence.pooling)
    reached = torch.zeros_like(evidence.pooling)
    entering = zip(flow.list_standing(), evidence.hidden, evidence.hidden_gradient, strict=True)
    for number, hidden, gradient in entering:
        positive = (hidden * gradient).sum(-1).clamp_(min=0).to(summed.dtype)
        for stands_for in flow.find_hidden(number) if number >= first else ():
            summed = summed + stands_for.pull(positive)
            reached = reached + stands_for.pull(gradient.any(-1).to(summed.dtype))
    return summed, reached > 0


def link_tokens(evidence: Evidence, flow: TokenFlow, columns: Tensor, first: int) -> Tensor:
    """Multiply columns, (n, batch, tokens), by the links of tokens, A + A^T, over all layers.

    Attention links tokens of the input that queries and keys are made of.
    """
    linked = torch.zeros_like(columns)
    maps = evidence.fuse_heads(lambda readings: readings.attention, first=first)
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


def sum_received_evidence(evidence: Evidence, flow: TokenFlow) -> Tensor:
    """Sum hidden state times gradient over layers, weighted by the attention that tokens receive.

    Returns:
        (classes, batch, tokens of the input).
    """
    scores = torch.zeros_like(evidence.pooling)
    maps = list(evidence.fuse_heads(lambda readings: readings.attention))[::-1]
    entering = zip(flow.list_standing(), evidence.hidden, evidence.hidden_gradient, strict=True)
    for number, hidden, gradient in entering:
        layer, products = flow.layers[number], (hidden * gradient).sum(-1).to(scores.dtype)
        at_keys = layer.multiply(_weigh_queries(evidence, flow, number, scores), maps[number])
        received = _take_to_stream(layer, number, at_keys) if layer.has_entry else at_keys
        for stands_for in flow.find_hidden(number):
            scores = scores + stands_for.pull(received * products)
    return scores


def _weigh_queries(evidence: Evidence, flow: TokenFlow, number: int, like: Tensor) -> Tensor:
    """Equal weights of the tokens of a layer that are no padding: (batch, tokens)."""
    stands_for, batch = flow.stands_for[number], evidence.batch
    weights = like.new_ones(batch, flow.layers[number].count)
    if stands_for is not None:
        padding = (~evidence.token_mask).to(like.dtype)
        weights = (stands_for.push(padding) < 0.5).to(like.dtype)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)


def _take_to_stream(layer: FlowLayer, number: int, at_keys: Tensor) -> Tensor:
    """Attention that keys receive, as that of the tokens that enter the layer."""
    received = at_keys.new_zeros(*at_keys.shape[:-1], layer.count)
    for source, to_keys in layer.keys.items():
        if source == number:
            received = received + to_keys.pull(at_keys)
        elif source in layer.stream:
            received = received + layer.stream[source].push(to_keys.pull(at_keys))
    return received
