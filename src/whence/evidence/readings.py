"""Readings of a trace: gradient or relevance at places of the graph, or site by site."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from whence.rules import RuleSet
from whence.tracing.graph.sites import AttentionSite
from whence.tracing.ops.attention import ChunkedAttention, select_heads
from whence.tracing.ops.products import MatMul
from whence.tracing.trace import Trace


class MapReadings(NamedTuple):
    """What there is at the attention maps of a site, or of some of its heads.

    What a method does not need is empty.

    Attributes:
        attention: (batch, heads, queries, keys).
        gradient: (classes, batch, heads, queries, keys).
        relevance: As the gradient.
    """

    attention: Tensor
    gradient: Tensor
    relevance: Tensor


_REDUCE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
}
_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": Tensor.add_,
    "max": torch.maximum,
    "min": torch.minimum,
}

HeadFusion = Literal["mean", "max", "min"]
HeadChunks = Callable[[], Iterator[MapReadings]]
"""Gives the readings of one site, some heads at a time."""


def fuse_chunks(
    chunks: Iterator[MapReadings], weigh: Callable[[MapReadings], Tensor], heads: HeadFusion
) -> Tensor:
    """One matrix (..., queries, keys) of all heads of a site."""
    fused, count = None, 0
    for readings in chunks:
        maps = weigh(readings)
        count += maps.shape[-3]
        part = _REDUCE[heads](maps, -3)
        fused = part if fused is None else _COMBINE[heads](fused, part)
        del maps, part, readings
    if fused is None:
        raise ValueError("A site has at least one head.")
    return fused.div_(count) if heads == "mean" else fused


def read_places(
    trace: Trace,
    classes: Tensor,
    rules: RuleSet | None,
    sites: Sequence[AttentionSite],
    inputs: Sequence[Tensor],
    tokens: Mapping[str, Sequence[tuple[Tensor, GradientEdge]]],
) -> tuple[list[Tensor], list[Tensor], dict[str, list[Tensor]]]:
    """Gradient or relevance at several kinds of places, in one backward pass.

    Args:
        trace: The recorded forward pass.
        classes: (batch, n) class indices.
        rules: How values pass operations; None for plain gradients.
        sites: Attention sites.
        inputs: Leaves of the graph.
        tokens: Tensors whose rows are tokens, and where they are in the graph.

    Returns:
        By heads at every site of the trace, empty where it was not asked for; at the inputs; and by
        tokens.
    """
    edges = [edge for values in tokens.values() for _, edge in values]
    places: list[Tensor | GradientEdge] = [*(site.weights for site in sites), *inputs, *edges]
    read = iter(trace.read(classes, places, rules) if places else ())
    maps = [site.split_heads(next(read), trace.batch) for site in sites]
    # Sites that were not read are empty, so that sites keep their numbers.
    missing = len(trace.sites) - len(maps) if maps else 0
    at_inputs = [next(read) for _ in inputs]
    at_tokens = {
        kind: [trace.split_tokens(next(read), edge, value.shape) for value, edge in values]
        for kind, values in tokens.items()
    }
    return [classes.new_zeros(0)] * missing + maps, at_inputs, at_tokens


def iterate_sites(
    trace: Trace,
    sites: Sequence[AttentionSite],
    kinds: Collection[str],
    classes: Tensor,
    rules: Mapping[str, RuleSet | None],
    *,
    release: bool,
) -> Iterator[HeadChunks]:
    """The attention maps from the last to the first, with what is read there.

    Args:
        trace: The recorded forward pass.
        sites: The sites, nearest the input first.
        kinds: Which of attention, gradient and relevance.
        classes: (batch, n) class indices.
        rules: How gradient and relevance pass operations.
        release: Whether to free what has been passed.
    """
    sites = sites[::-1]
    wanted = [kind for kind in rules if kind in kinds]
    values = trace.iterate_backward(
        classes,
        [site.graph_tensor for site in sites] if wanted else (),
        [rules[kind] for kind in wanted],
        release=release,
    )
    waiting: dict[int, list[Tensor]] = {}
    # Of attentions side by side, the backward pass may meet the last one not as the first. What
    # they are read from then has to outlast their release.
    products = {number: site.product for number, site in enumerate(sites)}
    for number, site in enumerate(sites):
        while wanted and number not in waiting:
            met, read = next(values)
            waiting[met] = read
            if met != number:
                products[met] = copy.copy(products[met])
        found = dict(zip(wanted, waiting.pop(number, ()), strict=True))
        product = products.pop(number)
        chunks: HeadChunks
        if isinstance(product, ChunkedAttention):
            chunks = partial(_read_in_chunks, product, kinds, found, rules)
        else:
            found = {kind: site.split_heads(one, trace.batch) for kind, one in found.items()}
            if "attention" in kinds:
                found["attention"] = site.split_heads(site.weights.detach(), trace.batch)
            chunks = partial(iter, (_make_readings(found),))
        found = {}
        yield chunks
        del chunks, product
        if release:
            site.release()


def _make_readings(found: Mapping[str, Tensor]) -> MapReadings:
    empty = torch.empty(0)
    return MapReadings(*(found.get(kind, empty) for kind in MapReadings._fields))


def _read_in_chunks(
    attention: ChunkedAttention,
    kinds: Collection[str],
    at_output: Mapping[str, Tensor],
    rules: Mapping[str, RuleSet | None],
) -> Iterator[MapReadings]:
    """What there is at maps that were not kept, given what was read at the attention's output."""
    for heads in attention.head_chunks():
        product = attention.split_operations(heads)[-1]
        product.wanted = (True, False)
        found = {"attention": product.a} if "attention" in kinds else {}
        for kind, values in at_output.items():
            found[kind] = torch.stack(
                [_read_at_map(product, select_heads(one, heads), rules[kind]) for one in values]
            )
        readings = _make_readings(found)
        del found
        yield readings
        del readings


def _read_at_map(product: MatMul, value: Tensor, rules: RuleSet | None) -> Tensor:
    values = product.gradient(value) if rules is None else rules.propagate(product, value)
    if values[0] is None:
        raise RuntimeError("A rule gave no value for an attention map, which is wanted.")
    return values[0]
