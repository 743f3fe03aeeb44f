"""Evidence of the layers of a flow, taken to the tokens of the input."""

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.tracing.flow.flow import TokenFlow


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
