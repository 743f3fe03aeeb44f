"""Coverage: how much of a target's dependence on the input goes through the tokens of a sequence.

Methods that read attention score the tokens that enter the first block. A model may read its input
elsewhere too: the decoder of a classifier may look the same words up again. Mostly the graph proves
that it does not. Where it does not prove it, shares of |x * gradient| at the input tell how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence.tracing.backward import propagate_backward
from whence.tracing.flow.binding import find_values
from whence.tracing.flow.flow import INPUT
from whence.tracing.graph import find_layers
from whence.tracing.recording import edge_of
from whence.tracing.trace import Trace


def measure_around(
    trace: Trace, make_targets: Callable[[], Tensor], copies: bool = True
) -> Tensor | None:
    """The share of the targets' dependence on the input that leads around the scored tokens.

    Args:
        trace: The recorded forward pass.
        make_targets: Gives targets, as for `Trace.make_seeds`.
        copies: Whether tokens are scored wherever a flow reads the input, not only where it is
            first read.

    Returns:
        (batch,), the largest share of all classes; None if what enters the first block is unknown.
        It is exactly 0 only where the graph proves it.
    """
    entering = _find_entering(trace)[: None if copies else 1]
    if not entering:
        return None
    nothing = torch.zeros(trace.batch, device=trace.logits.device)
    if not leads_around(trace.tops, trace.leaves, {edge.node for edge in entering}):
        return nothing
    count = len(trace.leaves)
    read = trace.read(make_targets(), [*trace.leaves, *entering])
    whole, through = read[:count], [torch.zeros_like(one) for one in read[:count]]
    for edge, gradient in zip(entering, read[count:], strict=True):
        parts = zip(through, read_through(trace, edge, gradient), strict=True)
        through = [a + b for a, b in parts]
    totals = [nothing, nothing]
    for leaf, gradient, part in zip(trace.leaves, whole, through, strict=True):
        for number, value in enumerate((part, gradient - part)):
            products = (leaf.detach() * value).abs().flatten(2)  # (classes, batch, ...)
            totals[number] = totals[number] + products.sum(2)
    by_tokens, around = totals
    shares = (around / (by_tokens + around)).nan_to_num(0.0).amax(0)
    return shares.clamp_min(torch.finfo(shares.dtype).tiny)


def read_through(trace: Trace, place: GradientEdge, gradient: Tensor) -> list[Tensor]:
    """The part of the gradients at the leaves that goes through one place of the graph.

    Args:
        trace: The recorded forward pass.
        place: The place.
        gradient: The gradient there, (classes, ...).
    """
    edges = [edge_of(leaf) for leaf in trace.leaves]
    with torch.inference_mode(False), torch.no_grad():
        values = dict(
            propagate_backward(place, [gradient], [None], edges, batch=trace.batch, several=True)
        )
    return [values[number][0] for number in range(len(edges))]


def leads_around(tops: Iterable[Node], leaves: Iterable[Tensor], cuts: Iterable[Node]) -> bool:
    """Whether a leaf is upstream of some nodes even with others cut out of the graph."""
    ends = {edge_of(leaf).node for leaf in leaves}
    seen: set[Node | None] = {None, *cuts}
    waiting: list[Node | None] = list(tops)
    while waiting:
        node = waiting.pop()
        if node in ends:
            return True
        if node not in seen and node is not None:
            seen.add(node)
            waiting += [upstream for upstream, _ in node.next_functions]
    return False


def _find_entering(trace: Trace) -> list[GradientEdge]:
    """What enters the first layer of attention: the tokens that are scored.

    In a flow of tokens, it is what enters each layer that reads the input.
    """
    if not trace.sites:
        return []
    if trace.flow is None:
        skip = find_layers(trace)[0].skip
        return [] if skip is None else [skip.input_edge]
    found = []
    for layer, own in zip(find_layers(trace), trace.flow.layers, strict=True):
        if INPUT in own.stream and layer.skip is not None:
            found.append(layer.skip.input_edge)
        elif INPUT in own.keys or INPUT in own.stream:
            found.append(find_values(trace, layer))
    return found
