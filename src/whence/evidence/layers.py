"""What evidence reads at layers and blocks: heads put together, hidden states, values' inputs."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from whence.errors import WhenceError
from whence.tracing.flow.binding import find_values
from whence.tracing.flow.flow import TokenFlow
from whence.tracing.graph import (
    AttentionLayer,
    Block,
    find_blocks,
    find_structure,
    is_attention_pooling,
    is_sequential,
)
from whence.tracing.readings import (
    MapChunks,
    MapReadings,
    fuse_chunks,
    hand_over,
    iterate_sites,
    make_readings,
)
from whence.tracing.trace import Trace


def find_blocks_of_stream(trace: Trace, layers: list[AttentionLayer]) -> list[Block]:
    """Find the blocks of the residual stream.

    What leaves the last block enters pooling by attention, which has no block of its own.
    """
    pools = len(layers) > 1 and is_attention_pooling(layers)
    if pools and not is_sequential(trace):
        raise WhenceError(
            f"The attention in {layers[-1].where} pools more than the tokens that leave the last "
            f"block, so that these are not all that the target reads. Methods at the input, such "
            f"as 'input_x_gradient', work."
        )
    return find_blocks(trace, without_last=pools)


def list_hidden_states(trace: Trace, blocks: list[Block]) -> list[tuple[Tensor, GradientEdge]]:
    """List what enters each block and leaves the last, with its place in the graph."""
    entering = [(block.input, block.input_edge) for block in blocks]
    last = trace.entries[blocks[-1].output.index].output
    return [*entering, (blocks[-1].find_value(last), last)]


def list_entering(
    trace: Trace, layers: list[AttentionLayer], flow: TokenFlow
) -> list[tuple[Tensor, GradientEdge]]:
    """List the hidden states that tokens of the input are in a flow, with their places.

    They are what enters the layers, and the values of a layer where that cannot be read, or that
    has no skip connection.
    """
    graph, found = find_structure(trace).graph, []
    for number in flow.list_standing():
        skip = layers[number].skip if flow.layers[number].has_entry else None
        edge = find_values(trace, layers[number]) if skip is None else skip.input_edge
        found.append((graph.find_value(edge), edge))
    return found


def list_value_inputs(blocks: list[Block]) -> list[tuple[Tensor, GradientEdge]]:
    """List what the values of each attention are computed from, with its place in the graph."""
    return [(block.value_input, block.value_input_edge) for block in blocks]


def join_heads(maps: list[Tensor], layers: list[AttentionLayer], missing: int = 0) -> list[Tensor]:
    """Maps of sites, (..., heads, queries, keys), as maps of layers.

    Before them come empty ones for layers that were not read, so that layers keep their numbers.
    """
    of_sites = iter(maps)
    parts = [[next(of_sites) for _ in layer.sites] for layer in layers]
    joined = [part[0] if len(part) == 1 else torch.cat(part, -3) for part in parts]
    return [torch.empty(0)] * missing + joined


def iterate_layers(lists: Mapping[str, list[Tensor]], first: int) -> Iterator[MapChunks]:
    """Readings of layers, from the last to a first one, of lists by their kind."""
    for number in reversed(range(first, max(map(len, lists.values())))):
        found = {kind: values[number] for kind, values in lists.items()}
        yield hand_over(make_readings(found))


def join_sites(sites: Iterator[MapChunks], counts: list[int]) -> Iterator[MapChunks]:
    """Readings of sites as readings of layers, which have so many sites each."""
    for count in counts:
        if count == 1:
            yield next(sites)
        else:
            yield hand_over(*(p for _ in range(count) for p in next(sites)(every_key=True)))
    for _ in sites:  # none is left, but places upstream of the first may be read, too
        pass


def sum_keys(chunks: Iterator[MapReadings]) -> Tensor:
    """How strongly the logit depends on each query of a layer: (classes, batch, queries)."""
    return fuse_chunks(chunks, lambda at: at.gradient.abs().sum(-1, keepdim=True), "mean")[..., 0]


def read_last_layer(trace: Trace, layer: AttentionLayer, seeds: Tensor) -> Tensor:
    """How strongly targets depend on each query of a layer: (classes, batch, queries)."""
    plain = {"gradient": None}
    sites = iterate_sites(trace, layer.sites, plain, {"gradient": seeds}, plain, release=False)
    return sum_keys(part for chunks in sites for part in chunks(every_key=True))
