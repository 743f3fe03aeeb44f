"""Sequences: which tokens each attention reads from, and which ones it writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch.autograd.graph import GradientEdge, Node

from whence.tracing.graph.blocks import OperationGraph
from whence.tracing.ops.attention import SOFTMAX, AttentionSite, ChunkedAttention
from whence.tracing.ops.base import Operation
from whence.tracing.ops.products import ConstantMatMul, Linear, MatMul
from whence.tracing.trace import Trace


class SiteSequences(NamedTuple):
    """The sequences of tokens of one attention site, by number.

    Attributes:
        queries: Of the tokens that attend.
        keys: Of those that are attended to; the same in self-attention.
        constant: Whether the queries do not depend on the input.
        merged: Whether some of these tokens were made of those of another sequence: merged, split
            off or put together.
    """

    queries: int
    keys: int
    constant: bool = False
    merged: bool = False

    @property
    def is_cross(self) -> bool:
        """Whether the attention reads another sequence than its own."""
        return self.queries != self.keys


def find_sequences(trace: Trace) -> list[SiteSequences]:
    """The sequences of every attention site, in the order of computation.

    An attention whose queries and keys are projected from the same tensor stays in one sequence. It
    adds to the sequence of its queries. The queries of a later attention belong to a sequence if
    the way upstream from them, other than through an attention, comes upon it.
    """
    if trace.sequences is None:
        trace.sequences = _find_sequences(trace)
    return trace.sequences


def _find_sequences(trace: Trace) -> list[SiteSequences]:
    graph = OperationGraph(trace)
    products = {site.product.index: number for number, site in enumerate(trace.sites)}
    parents = list(range(2 * len(trace.sites)))  # queries of each site, then keys of each

    def find_root(end: int) -> int:
        while parents[end] != end:
            end = parents[end]
        return end

    def unite(a: int, b: int) -> None:
        first, second = sorted((find_root(a), find_root(b)))
        parents[second] = first

    sites = len(trace.sites)
    constant, merged = [], []
    for number, site in enumerate(trace.sites):
        queries, keys = _find_query_and_key_edges(trace, graph, site)
        constant.append(not queries)
        merged.append(False)
        if site.query_count == site.key_count and _have_one_source(trace, graph, queries, keys):
            unite(number, number + sites)
        values = trace.entries[site.product.index].inputs[site.values_number]
        ends = (
            (number, site.query_count, queries),
            (number + sites, site.key_count, [*keys, values]),
        )
        for end, length, edges in ends:
            for other in _find_upstream_sites(trace, graph, edges, products):
                if trace.sites[other].query_count == length:
                    unite(end, other)
                else:
                    merged[number] = True
    return [
        SiteSequences(find_root(n), find_root(n + sites), constant[n], merged[n])
        for n in range(sites)
    ]


def is_attention_pooling(trace: Trace, sequences: list[SiteSequences]) -> bool:
    """Whether the last attention only gathers the tokens of another sequence.

    Then no other attention is in the sequence of its queries.
    """
    last, site = sequences[-1], trace.sites[-1]
    alone = sum(of.queries == last.queries for of in sequences) == 1
    return last.is_cross and alone and site.query_count != site.key_count


def find_input_sequence(trace: Trace, sequences: list[SiteSequences]) -> int:
    """The sequence of the tokens that the input became: the one its first attention reads."""
    for site, of in zip(trace.sites, sequences, strict=True):
        waiting: list[Node | None] = [trace.entries[site.product.index].output.node]
        seen: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if any(getattr(node, "variable", None) is leaf for leaf in trace.inputs):
                return of.keys
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [upstream for upstream, _ in node.next_functions]
    raise AssertionError("some attention depends on the input")


def _find_query_and_key_edges(
    trace: Trace, graph: OperationGraph, site: AttentionSite
) -> tuple[list[GradientEdge], list[GradientEdge]]:
    """Where queries and keys enter the product that scores them; nowhere if they are constant."""
    if isinstance(site.product, ChunkedAttention):
        queries, keys, _ = trace.entries[site.product.index].inputs
        return [queries], [keys]
    weights = trace.entries[site.product.index].inputs[1 if site.keys_first else 0]
    softmax = _find_nearest(trace, graph, weights, lambda op: op.name == SOFTMAX)
    if softmax is None:
        return [], []
    scores = _find_nearest(
        trace,
        graph,
        trace.entries[softmax.index].inputs[0],
        lambda op: isinstance(op, MatMul | ConstantMatMul),
    )
    if scores is None:
        return [], []
    edges = list(trace.entries[scores.index].inputs)
    if isinstance(scores, ConstantMatMul):
        first, second = ([], edges) if scores.weight_first else (edges, [])
    else:
        first, second = edges[:1], edges[1:]
    return (second, first) if site.keys_first else (first, second)


def _find_nearest(
    trace: Trace, graph: OperationGraph, edge: GradientEdge, matches: Callable[[Operation], bool]
) -> Operation | None:
    """The first operation upstream of an edge that matches."""
    waiting, seen = sorted(graph.find_upstream(edge.node), reverse=True), set[int]()
    while waiting:
        index = waiting.pop(0)
        if index in seen:
            continue
        seen.add(index)
        operation = trace.entries[index].operation
        if matches(operation):
            return operation
        for source in trace.entries[index].inputs:
            waiting += sorted(graph.find_upstream(source.node), reverse=True)
    return None


def _have_one_source(
    trace: Trace, graph: OperationGraph, queries: list[GradientEdge], keys: list[GradientEdge]
) -> bool:
    """Whether queries and keys are projected from the same tensor, or both from constants."""
    a, b = _find_sources(trace, graph, queries), _find_sources(trace, graph, keys)
    return bool(a & b) or not (a or b)


def _find_sources(
    trace: Trace, graph: OperationGraph, edges: Iterable[GradientEdge]
) -> set[Node | int]:
    """What the nearest projections upstream of some edges read."""
    sources: set[Node | int] = set()
    waiting = [(edge.node, i) for edge in edges for i in graph.find_upstream(edge.node)]
    seen: set[int] = set()
    while waiting:
        node, index = waiting.pop()
        entry = trace.entries[index]
        if isinstance(entry.operation, Linear):
            read = entry.inputs[0].node
            sources |= graph.find_upstream(read) or {read}
        elif index not in seen:
            seen.add(index)
            inner = [(e.node, i) for e in entry.inputs for i in graph.find_upstream(e.node)]
            waiting += inner
            if not inner:
                sources.add(node)
    return sources


def _find_upstream_sites(
    trace: Trace, graph: OperationGraph, edges: Iterable[GradientEdge], products: dict[int, int]
) -> set[int]:
    """The attentions that are met first upstream of some edges, by number."""
    found: set[int] = set()
    waiting, seen = [i for edge in edges for i in graph.find_upstream(edge.node)], set[int]()
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        if index in products:
            found.add(products[index])
            continue
        inputs = trace.entries[index].inputs
        waiting += [i for edge in inputs for i in graph.find_upstream(edge.node)]
    return found
