"""Streams: which sequence of tokens each attention reads from, and which one it writes to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch.autograd.graph import GradientEdge

from whence.tracing.graph.blocks import Links
from whence.tracing.graph.sites import SOFTMAX, AttentionSite
from whence.tracing.ops.attention import Attention
from whence.tracing.ops.operations import ConstantMatMul, Linear, MatMul, Operation
from whence.tracing.trace import Trace


class Streams(NamedTuple):
    """The sequences of tokens that one attention joins, by number.

    Attributes:
        queries: Of the tokens that attend.
        keys: Of those that are attended to; the same in self-attention.
        constant: Whether the queries do not depend on the input.
        merged: Whether some of these tokens were made of those of another stream: merged, split
            off or put together.
    """

    queries: int
    keys: int
    constant: bool = False
    merged: bool = False

    @property
    def cross(self) -> bool:
        """Whether the attention reads another sequence than its own."""
        return self.queries != self.keys


def find_streams(trace: Trace) -> list[Streams]:
    """The streams of every attention map, in the order of computation.

    An attention whose queries and keys are projected from the same tensor stays in one stream. What
    it adds to is the stream of its queries; so are the queries of a later attention of a stream if
    the way back from them, other than through an attention, comes upon it.
    """
    if "streams" not in trace.remembered:
        trace.remembered["streams"] = _streams(trace)
    found: list[Streams] = trace.remembered["streams"]
    return found


def _streams(trace: Trace) -> list[Streams]:
    links = Links(trace)
    products = {site.product.index: number for number, site in enumerate(trace.sites)}
    joined = list(range(2 * len(trace.sites)))  # queries of each site, then keys of each

    def stream_of(end: int) -> int:
        while joined[end] != end:
            end = joined[end]
        return end

    def join(a: int, b: int) -> None:
        first, second = sorted((stream_of(a), stream_of(b)))
        joined[second] = first

    sites = len(trace.sites)
    constant, merged = [], []
    for number, site in enumerate(trace.sites):
        queries, keys = _ends(trace, links, site)
        constant.append(not queries)
        merged.append(False)
        if _queries(site) == site.tokens and _one_source(trace, links, queries, keys):
            join(number, number + sites)
        values = trace.steps[site.product.index].inputs[site.values_number]
        ends = ((number, _queries(site), queries), (number + sites, site.tokens, [*keys, values]))
        for end, length, edges in ends:
            for other in _behind(trace, links, edges, products):
                if _queries(trace.sites[other]) == length:
                    join(end, other)
                else:
                    merged[number] = True
    return [
        Streams(stream_of(number), stream_of(number + sites), constant[number], merged[number])
        for number in range(sites)
    ]


def _queries(site: AttentionSite) -> int:
    return site.weights.shape[-1 if site.keys_first else -2]


def pools(trace: Trace, streams: list[Streams]) -> bool:
    """Whether the last attention only gathers the tokens of another stream: pooling by attention.

    Then no other attention is in the stream of its queries.
    """
    last, site = streams[-1], trace.sites[-1]
    alone = sum(of.queries == last.queries for of in streams) == 1
    return last.cross and alone and site.weights.shape[-1] != site.weights.shape[-2]


def explained_stream(trace: Trace, streams: list[Streams]) -> int:
    """The stream of the tokens that the input became: what its first attention reads."""
    for site, of in zip(trace.sites, streams, strict=True):
        waiting: list[Any] = [trace.steps[site.product.index].output.node]
        seen: set[Any] = set()
        while waiting:
            node = waiting.pop()
            if any(getattr(node, "variable", None) is leaf for leaf in trace.inputs):
                return of.keys
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [behind for behind, _ in node.next_functions]
    raise AssertionError("some attention depends on the input")


def _ends(
    trace: Trace, links: Links, site: AttentionSite
) -> tuple[list[GradientEdge], list[GradientEdge]]:
    """Where queries and keys enter the product that scores them; nowhere if they are constant."""
    if isinstance(site.product, Attention):
        queries, keys, _ = trace.steps[site.product.index].inputs
        return [queries], [keys]
    weights = trace.steps[site.product.index].inputs[1 if site.keys_first else 0]
    softmax = _nearest(trace, links, weights, lambda op: op.name == SOFTMAX)
    if softmax is None:
        return [], []
    scores = _nearest(
        trace,
        links,
        trace.steps[softmax.index].inputs[0],
        lambda op: isinstance(op, MatMul | ConstantMatMul),
    )
    if scores is None:
        return [], []
    edges = list(trace.steps[scores.index].inputs)
    if isinstance(scores, ConstantMatMul):
        first, second = ([], edges) if scores.weight_first else (edges, [])
    else:
        first, second = edges[:1], edges[1:]
    return (second, first) if site.keys_first else (first, second)


def _nearest(trace: Trace, links: Links, edge: GradientEdge, wanted: Any) -> Operation | None:
    """The first operation of a kind on the way back from somewhere."""
    waiting, seen = sorted(links.behind(edge.node), reverse=True), set[int]()
    while waiting:
        index = waiting.pop(0)
        if index in seen:
            continue
        seen.add(index)
        operation = trace.steps[index].operation
        if wanted(operation):
            return operation
        for source in trace.steps[index].inputs:
            waiting += sorted(links.behind(source.node), reverse=True)
    return None


def _one_source(
    trace: Trace, links: Links, queries: list[GradientEdge], keys: list[GradientEdge]
) -> bool:
    """Whether queries and keys are projected from the same tensor, or both from constants."""
    a, b = _sources(trace, links, queries), _sources(trace, links, keys)
    return bool(a & b) or not (a or b)


def _sources(trace: Trace, links: Links, edges: Iterable[GradientEdge]) -> set[Any]:
    """What the nearest projections behind some places read."""
    sources: set[Any] = set()
    waiting, seen = [(edge.node, i) for edge in edges for i in links.behind(edge.node)], set[int]()
    while waiting:
        node, index = waiting.pop()
        step = trace.steps[index]
        if isinstance(step.operation, Linear):
            read = step.inputs[0].node
            sources |= links.behind(read) or {read}
        elif index not in seen:
            seen.add(index)
            inner = [(edge.node, i) for edge in step.inputs for i in links.behind(edge.node)]
            waiting += inner
            if not inner:
                sources.add(node)
    return sources


def _behind(
    trace: Trace, links: Links, edges: Iterable[GradientEdge], products: dict[int, int]
) -> set[int]:
    """The attentions that the ways back from some places end at, by number."""
    found: set[int] = set()
    waiting, seen = [i for edge in edges for i in links.behind(edge.node)], set[int]()
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        if index in products:
            found.add(products[index])
            continue
        waiting += [i for edge in trace.steps[index].inputs for i in links.behind(edge.node)]
    return found
