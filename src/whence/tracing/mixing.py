"""Mixing: whether tokens of a text meet outside of attention, as in recurrent or Mamba layers.

Methods that read attention take each token that enters a layer for what left the layer upstream at
its place, and in the end for a token of the input. Mostly the graph proves it: between two layers
there are only operations that treat each token by itself. Where it does not, gradients tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch.autograd.graph import GradientEdge, Node

from whence._util import torch_internals as internals
from whence._util.torch_internals import output_metadata
from whence.tracing.backward import propagate_backward, sort_nodes
from whence.tracing.graph import AttentionLayer, find_layers, find_structure
from whence.tracing.graph.sums import SkipConnection
from whence.tracing.marks import is_pointwise
from whence.tracing.ops.base import Operation
from whence.tracing.ops.function import Function, is_norm
from whence.tracing.ops.products import ConstantMatMul, Convolution, Linear
from whence.tracing.ops.sums import Add, Shift
from whence.tracing.recording import edge_of
from whence.tracing.trace import Trace

_PRIME = 4093
# Nodes that move no number from one token to another where shapes are of as many tokens.
_KEEPING = (
    *(internals.ADD, internals.ALIAS, internals.CLONE, internals.COPY, internals.SLICE),
    *(internals.SPLIT, internals.UNSAFE_VIEW, internals.VIEW),
)


def find_mixing(trace: Trace) -> AttentionLayer | None:
    """The first layer of attention beside which tokens meet elsewhere; None if there is none.

    Only texts are looked at, whose token ids are followed. In images, convolutions make tokens of
    neighbouring pixels.
    """
    if any(place.rows is None for place in trace.inputs):
        return None
    shown: set[tuple[object, ...]] = set()  # layers are mostly alike: one of a kind is enough
    for layer, start, ends in _iterate_gaps(trace):
        reached = {edge.node for edge in ends}
        nodes, _ = sort_nodes(start.node, dict.fromkeys(reached), ends=True)
        between = [node for node in nodes if node not in reached]
        tokens, kind = _shape_at(start)[:2], tuple(map(_describe, between))
        if kind in shown or all(_keeps_tokens_apart(node, tokens) for node in between):
            continue
        if _mixes_values(trace, start, ends):
            return layer
        shown.add(kind)
    return None


def _describe(node: Node) -> tuple[object, ...]:
    """What a node computes, and in which shape; the same for layers of one kind."""
    operation: Operation | None = getattr(node, "operation", None)
    return (
        node.name(),
        "" if operation is None else operation.name,
        _shape_at(GradientEdge(node, 0)),
    )


def _iterate_gaps(
    trace: Trace,
) -> Iterator[tuple[AttentionLayer, GradientEdge, list[GradientEdge]]]:
    """Tokens at two places with no attention between them: at the first, and upstream of it.

    These are what enters a layer, and what left the one upstream, or the input; what is added to
    a layer's output besides, and what entered it; and what the head reads, and what left the last.
    """
    left, last = [edge_of(leaf) for leaf in trace.leaves], None
    for layer in find_layers(trace):
        skip = layer.skip
        tokens = trace.batch, layer.query_count
        if skip is None or layer.is_cross:
            return
        if any(_shape_at(edge)[:2] != tokens for edge in (skip.input_edge, *left)):
            return
        yield layer, skip.input_edge, left
        for term in _find_other_terms(trace, layer, skip):
            yield layer, term, [skip.input_edge]
        left, last = [trace.entries[skip.addition.index].output], layer
    if last is not None:
        for read in _find_read_tokens(trace, left[0]):
            yield last, read, left


def _find_other_terms(
    trace: Trace, layer: AttentionLayer, skip: SkipConnection
) -> list[GradientEdge]:
    """What is added to the output of an attention and its skip connection, in parallel to both."""
    graph = find_structure(trace).graph
    products = [trace.entries[site.product.index].output.node for site in layer.sites]
    top = trace.entries[skip.addition.index].output.node
    found, waiting = [], list(graph.sources(top))
    while waiting:
        edge = waiting.pop()
        if graph.is_upstream(edge.node, skip.input_edge.node):
            continue  # it enters the layer, as all upstream of it does
        if isinstance(getattr(edge.node, "operation", None), Add):
            waiting += graph.sources(edge.node)
            continue
        of_attention = any(graph.is_upstream(product, edge.node) for product in products)
        if not of_attention and _shape_at(edge) == _shape_at(skip.input_edge):
            found.append(edge)
    return found


def _find_read_tokens(trace: Trace, left: GradientEdge) -> list[GradientEdge]:
    """Where the tokens that left the last layer are nearest to the target."""
    nodes, _ = sort_nodes(trace.tops[0], {left.node: None}, ends=True)
    same = (node for node in nodes if _shape_at(GradientEdge(node, 0)) == _shape_at(left))
    return [GradientEdge(node, 0) for node in islice(same, 1) if node is not left.node]


def _shape_at(edge: GradientEdge) -> tuple[int, ...]:
    return tuple(output_metadata(edge.node)[edge.output_nr].shape)


def _keeps_tokens_apart(node: Node, tokens: tuple[int, ...]) -> bool:
    outputs = [like.shape for like in output_metadata(node)]
    inputs = [output_metadata(one)[nr].shape for one, nr in node.next_functions if one is not None]
    widths = [_count_dims_of_token(shape, tokens) for shape in (*outputs, *inputs)]
    if not all(widths):
        return False
    operation: Operation | None = getattr(node, "operation", None)
    if operation is None:
        return node.name() in _KEEPING
    if isinstance(operation, Linear):
        constant_first = isinstance(operation, ConstantMatMul) and operation.weight_first
        return not isinstance(operation, Convolution) and not constant_first
    if isinstance(operation, Function):
        by_row = operation.mixed_dims is not None and operation.mixed_dims <= widths[0]
        return by_row or is_norm(operation) or is_pointwise(operation)
    return isinstance(operation, Add | Shift)


def _count_dims_of_token(shape: torch.Size, tokens: tuple[int, ...]) -> int:
    """How many dimensions each token has in a shape; 0 if it is not made of tokens."""
    if tuple(shape[:2]) == tokens:
        return len(shape) - 2
    return 1 if len(shape) == 2 and shape[0] == tokens[0] * tokens[1] else 0


def _mixes_values(trace: Trace, start: GradientEdge, ends: Sequence[GradientEdge]) -> bool:
    """Whether every other token depends on those between them at the ends, by gradients."""
    like = output_metadata(start.node)[start.output_nr]
    shape = torch.Size(like.shape)
    # Numbers without a pattern; what is compiled may draw none by a generator.
    numbers = torch.arange(shape.numel(), device=trace.logits.device) % _PRIME
    seed = (numbers.square() % _PRIME).sin().reshape(shape).to(like.dtype)
    seed[:, ::2] = 0
    with torch.inference_mode(False), torch.no_grad():
        values = dict(propagate_backward(start, [seed], [None], ends, batch=trace.batch))
    others = [values[number][0][:, ::2].any() for number in range(len(ends))]
    return bool(trace.guard.look_at(torch.stack(others).any()))
