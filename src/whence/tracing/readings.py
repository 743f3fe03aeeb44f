"""Readings of a trace: gradient, relevance and attention at several places, or site by site."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import functional as F

from whence.tracing.ops.attention import Arrangement, AttentionSite
from whence.tracing.ops.base import BackwardRules
from whence.tracing.ops.products import MatMul
from whence.tracing.ops.softmax import ChunkedAttention
from whence.tracing.trace import Trace


class MapReadings(NamedTuple):
    """What there is at the attention maps of a site, or of some of its queries.

    What a method does not need is empty.

    Attributes:
        attention: (batch, heads, queries, keys).
        gradient: (targets, batch, heads, queries, keys).
        relevance: As the gradient.
        first_query: The number of the first of these queries.
    """

    attention: Tensor
    gradient: Tensor
    relevance: Tensor
    first_query: int = 0


_KINDS = ("attention", "gradient", "relevance")
_REDUCE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": torch.sum,
    "sum": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
}
_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": Tensor.add_,
    "sum": Tensor.add_,
    "max": torch.maximum,
    "min": torch.minimum,
}

HeadFusion = Literal["mean", "sum", "max", "min"]


class MapChunks(Protocol):
    """Gives the readings of one site, some queries at a time."""

    def __call__(self, *, every_key: bool = False) -> Iterator[MapReadings]:
        """Readings of some queries after others.

        Args:
            every_key: Whether to read also at keys that these queries do not attend to, at the end.
        """


def hand_over(*parts: MapReadings) -> MapChunks:
    """Readings that are in memory, as chunks."""

    def chunks(*, every_key: bool = False) -> Iterator[MapReadings]:  # noqa: ARG001  all have all
        return iter(parts)

    return chunks


def fuse_chunks(
    chunks: Iterator[MapReadings], weigh: Callable[[MapReadings], Tensor], heads: HeadFusion
) -> Tensor:
    """One matrix (..., queries, keys) of all heads of a layer."""
    fused: dict[int, Tensor] = {}
    count = 0
    for readings in chunks:
        maps, first = weigh(readings), readings.first_query
        count += maps.shape[-3] if first == 0 else 0
        part = _REDUCE[heads](maps, -3)
        fused[first] = part if first not in fused else _COMBINE[heads](fused[first], part)
        del maps, part, readings
    if not fused:
        raise ValueError("A layer has at least one head.")
    widest = max(part.shape[-1] for part in fused.values())
    rows = [_widen(fused.pop(first), widest) for first in sorted(fused)]
    whole = rows[0] if len(rows) == 1 else torch.cat(rows, -2)
    return whole.div_(count) if heads == "mean" else whole


def _widen(part: Tensor, keys: int) -> Tensor:
    """A matrix (..., queries, some keys) with zeros for the keys after these."""
    return part if part.shape[-1] == keys else F.pad(part, (0, keys - part.shape[-1]))


def read_places(
    trace: Trace,
    targets: Tensor,
    rules: BackwardRules | None,
    sites: Sequence[AttentionSite],
    inputs: Sequence[Tensor],
    tokens: Mapping[str, Sequence[tuple[Tensor, GradientEdge]]],
) -> tuple[list[Tensor], list[Tensor], dict[str, list[Tensor]]]:
    """Gradient or relevance at attention sites, leaves and rows of tokens, in one backward pass.

    Returns:
        By heads at the sites; at the inputs; and by tokens.
    """
    edges = [edge for values in tokens.values() for _, edge in values]
    places: list[Tensor | GradientEdge] = [*(site.weights for site in sites), *inputs, *edges]
    read = iter(trace.read(targets, places, rules) if places else ())
    maps = [site.split_heads(next(read), trace.batch) for site in sites]
    at_inputs = [next(read) for _ in inputs]
    at_tokens = {
        kind: [trace.split_tokens(next(read), edge, value.shape) for value, edge in values]
        for kind, values in tokens.items()
    }
    return maps, at_inputs, at_tokens


def iterate_sites(
    trace: Trace,
    sites: Sequence[AttentionSite],
    kinds: Collection[str],
    targets: Mapping[str, Tensor],
    rules: Mapping[str, BackwardRules | None],
    *,
    release: bool,
    start: GradientEdge | None = None,
) -> Iterator[MapChunks]:
    """The attention maps from the last to the first, with the kinds of values read there.

    Values begin at the logits, or at another place of the graph.
    """
    sites = sites[::-1]
    wanted = [kind for kind in rules if kind in kinds]
    values = trace.iterate_backward(
        [targets[kind] for kind in wanted],
        [site.place for site in sites] if wanted else (),
        [rules[kind] for kind in wanted],
        release=release,
        start=start,
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
        chunks: MapChunks
        if isinstance(product, ChunkedAttention):
            chunks = partial(_read_in_chunks, product, kinds, found, rules, site.arrangement)
        else:
            found = {kind: site.split_heads(one, trace.batch) for kind, one in found.items()}
            if "attention" in kinds:
                found["attention"] = site.split_heads(site.weights.detach(), trace.batch)
            chunks = hand_over(make_readings(found))
        found = {}
        yield chunks
        del chunks, product
        if release:
            site.release()


def make_readings(found: Mapping[str, Tensor], first_query: int = 0) -> MapReadings:
    """Readings of some kinds; the others are empty."""
    attention, gradient, relevance = (found.get(kind, torch.empty(0)) for kind in _KINDS)
    return MapReadings(attention, gradient, relevance, first_query)


def _read_in_chunks(
    attention: ChunkedAttention,
    kinds: Collection[str],
    at_output: Mapping[str, Tensor],
    rules: Mapping[str, BackwardRules | None],
    arrangement: Arrangement | None,
    *,
    every_key: bool = False,
) -> Iterator[MapReadings]:
    """What there is at maps that were not kept, given what was read at the attention's output."""
    attention.fetch()
    classes = max((len(values) for values in at_output.values()), default=1)
    for rows, part in attention.split_queries(classes, every_key=every_key):
        product = part.split_operations()[-1]
        product.wanted = (True, False)
        found = {"attention": product.a} if "attention" in kinds else {}
        for kind, values in at_output.items():
            read = [_read_at_map(product, one[..., rows, :], rules[kind]) for one in values]
            found[kind] = read[0][None] if len(read) == 1 else torch.stack(read)
            del read
        if arrangement is not None:
            found = {kind: arrangement.split(values) for kind, values in found.items()}
        readings = make_readings(found, rows.start)
        del found, product
        yield readings
        del readings


def _read_at_map(product: MatMul, value: Tensor, rules: BackwardRules | None) -> Tensor:
    values = product.gradient(value) if rules is None else rules.propagate(product, value)
    if values[0] is None:
        raise RuntimeError("A rule gave no value for an attention map, which is wanted.")
    return values[0]
