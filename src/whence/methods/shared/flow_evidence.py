"""Evidence of the layers of a flow, taken to the tokens of the input."""

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.tracing.flow.flow import FlowLayer, TokenFlow


def list_held(
    evidence: Evidence, first: int, positive: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Multiply hidden states by gradients where blocks begin; mark tokens the target depends on.

    In a flow, a layer's tokens share their evidence evenly among those of the input that they are
    made of.

    Args:
        evidence: Hidden states and gradients.
        first: The first layer that counts.
        positive: Whether what speaks against the target at a token of a layer does not count.

    Returns:
        (targets, batch, tokens) for each layer whose tokens stand for parts of the input; and one.
    """
    if evidence.flow is not None:
        return _list_held_in_flow(evidence, evidence.flow, first, positive)
    layers = slice(first, len(evidence.layers))
    entering = zip(evidence.hidden[layers], evidence.hidden_gradient[layers], strict=True)
    held, reached = [], []
    for hidden, gradient in entering:
        held.append(_multiply(hidden, gradient, positive))
        reached.append(gradient.any(-1))
    return held, torch.stack(reached).any(0)


def _list_held_in_flow(
    evidence: Evidence, flow: TokenFlow, first: int, positive: bool
) -> tuple[list[Tensor], Tensor]:
    listed, reached = list[Tensor](), torch.zeros_like(evidence.pooling)
    entering = zip(flow.list_standing(), evidence.hidden, evidence.hidden_gradient, strict=True)
    for number, hidden, gradient in entering:
        if number < first:
            continue
        held = _multiply(hidden, gradient, positive).to(reached.dtype)
        of_layer = torch.zeros_like(reached)
        for stands_for in flow.find_hidden(number):
            of_layer = of_layer + stands_for.pull(held)
            reached = reached + stands_for.pull(gradient.any(-1).to(reached.dtype))
        listed.append(of_layer)
    return listed or [torch.zeros_like(reached)], reached > 0


def _multiply(hidden: Tensor, gradient: Tensor, positive: bool) -> Tensor:
    products = (hidden * gradient).sum(-1)
    return products.clamp_(min=0) if positive else products


def sum_flow_reads(flow: TokenFlow, reads: Tensor, number: int) -> Tensor | None:
    """Sum what all queries of a layer read, (..., queries, keys), for each token of the input.

    Returns:
        (..., tokens); None if the keys are made of no part of the input.
    """
    of_keys = flow.find_keys(number)
    if not of_keys:
        return None
    at_keys = reads.sum(-2)
    at_keys = at_keys if flow.layers[number].groups == 1 else at_keys.flatten(-2)
    return sum((one.pull(at_keys) for one in of_keys[1:]), of_keys[0].pull(at_keys))


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
