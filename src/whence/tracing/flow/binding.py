"""Which traces need a flow of tokens, and how a flow that was found is bound to a trace."""

from __future__ import annotations

from torch.autograd.graph import GradientEdge

from whence._util.torch_internals import output_metadata
from whence.tracing.flow.flow import TokenFlow
from whence.tracing.graph import AttentionLayer, find_layers, is_attention_pooling, is_sequential
from whence.tracing.trace import Trace


def needs_flow(trace: Trace) -> bool:
    """Whether tokens do anything else than pass all layers in turn in one sequence.

    A last attention may pool the tokens of that sequence.
    """
    if any(site.problem for site in trace.sites):
        return True
    layers = find_layers(trace)
    within = layers[:-1] if len(layers) > 1 and is_attention_pooling(layers) else layers
    sequence = layers[0].keys
    if any(one.merged for one in layers):
        return True
    if any({one.queries, one.keys} != {sequence} for one in within):
        return True
    if not all(_has_rows_of_tokens(trace, one) for one in within):
        return True
    return not is_sequential(trace)


def _has_rows_of_tokens(trace: Trace, layer: AttentionLayer) -> bool:
    """Whether what enters a layer is laid out as samples and tokens, in any order."""
    if layer.skip is None:
        return layer.addition is None
    edge = layer.skip.input_edge
    shape = tuple(output_metadata(edge.node)[edge.output_nr].shape)
    batch, tokens = trace.batch, layer.query_count
    return shape[:2] in ((batch, tokens), (tokens, batch)) or shape[:1] == (batch * tokens,)


def bind_flow(trace: Trace, flow: TokenFlow) -> None:
    """Let a trace read its attention and its hidden states as a flow says.

    The flow may have been found in another trace of the same model and the same kind of inputs.
    """
    trace.flow = flow
    trace.token_indices = {}
    for layer, own in zip(find_layers(trace), flow.layers, strict=True):
        for site, arrangement in zip(layer.sites, own.arrangements, strict=True):
            site.arrangement = arrangement
        edge = find_leaving(trace, layer)
        trace.token_indices[edge.node, edge.output_nr] = own.leaving
        edge = find_values(trace, layer)
        trace.token_indices[edge.node, edge.output_nr] = own.key_index
        if layer.skip is not None and own.entering is not None:
            edge = layer.skip.input_edge
            trace.token_indices[edge.node, edge.output_nr] = own.entering


def find_leaving(trace: Trace, layer: AttentionLayer) -> GradientEdge:
    """Where the sum of an attention and its skip connection is; its output if it has none."""
    operation = layer.sites[0].product if layer.addition is None else layer.addition
    return trace.entries[operation.index].output


def find_values(trace: Trace, layer: AttentionLayer) -> GradientEdge:
    """Where the values of a layer's first site are."""
    site = layer.sites[0]
    return trace.entries[site.product.index].inputs[site.values_number]
