"""Evidence of the layers of a flow, taken to the tokens of the input."""

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.tracing.flow.flow import INPUT, TokenFlow
from whence.tracing.flow.token_map import TokenMap


def list_standing(flow: TokenFlow) -> list[int]:
    """The layers with a skip connection whose tokens stand for parts of the input.

    Of layers that are added in one sum, the first stands for all.
    """
    return [
        number
        for number, (layer, stands_for) in enumerate(zip(flow.layers, flow.stands_for, strict=True))
        if layer.has_skip and layer.beside is None and stands_for is not None
    ]


def sum_flow_evidence(evidence: Evidence, flow: TokenFlow, first: int) -> tuple[Tensor, Tensor]:
    """Sum the positive evidence at the layers' inputs, and mark tokens that the class depends on.

    A layer's tokens share their evidence evenly among those of the input that they are made of.
    Both are (classes, batch, tokens).
    """
    summed = torch.zeros_like(evidence.pooling)
    reached = torch.zeros_like(evidence.pooling)
    entering = zip(list_standing(flow), evidence.hidden, evidence.hidden_gradient, strict=True)
    for number, hidden, gradient in entering:
        stands_for = flow.stands_for[number]
        if number >= first and stands_for is not None:
            positive = (hidden * gradient).sum(-1).clamp_(min=0)
            summed = summed + stands_for.pull(positive.to(summed.dtype))
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
        of_keys = _find_keys(flow, number)
        if of_queries is None or not of_keys:
            continue
        at_keys = sum((one.push(columns) for one in of_keys[1:]), of_keys[0].push(columns))
        linked = linked + of_queries.pull(layer.multiply_keys(attention, at_keys))
        back = layer.multiply(of_queries.push(columns), attention)
        for one in of_keys:
            linked = linked + one.pull(back)
    return linked


def _find_keys(flow: TokenFlow, number: int) -> list[TokenMap]:
    """From the keys of a layer to the tokens of the input that they are made of."""
    maps = []
    for source, step in flow.layers[number].keys.items():
        further = None if source == INPUT else flow.stands_for[source]
        if source == INPUT:
            maps.append(step)
        elif further is not None:
            maps.append(step.compose(further))
    return maps
