"""Structure of a model, from the recorded graph: blocks around attention, sequences of tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence.errors import WhenceError
from whence.tracing.ops.attention import SOFTMAX, AttentionSite, ChunkedAttention
from whence.tracing.ops.base import Add, Function, Operation, is_norm
from whence.tracing.ops.products import ConstantMatMul, Linear, MatMul
from whence.tracing.trace import Trace


class OperationGraph:
    """Which operations read the output of which, through whatever only moves numbers.

    Attributes:
        readers: For each operation's index, the indices of those that read its output.
    """

    def __init__(self, trace: Trace) -> None:
        self.entries = trace.entries
        self._overwrites = trace.overwrites
        self._upstream: dict[Node, frozenset[int]] = {}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for entry in trace.entries:
            for source in {i for edge in entry.inputs for i in self.find_upstream(edge.node)}:
                self.readers[source].append(entry.operation.index)

    def find_upstream(self, node: Node) -> frozenset[int]:
        """The nearest operations upstream of a node, by index; its own if it is one."""
        waiting = [node]
        while waiting:
            at = waiting[-1]
            operation: Operation | None = getattr(at, "operation", None)
            if at in self._upstream:
                waiting.pop()
            elif operation is not None:
                self._upstream[at] = frozenset((operation.index,))
            else:
                # What was overwritten as a whole comes first, and has no part in the result.
                sources = at.next_functions[at in self._overwrites :]
                nodes = [n for n, _ in sources if n is not None]
                unknown = [n for n in nodes if n not in self._upstream]
                if unknown:
                    waiting += unknown
                else:
                    self._upstream[at] = frozenset().union(*(self._upstream[n] for n in nodes))
        return self._upstream[node]


# Blocks -----------------------------------------------------------------------------------------


@dataclass
class Block:
    """One attention with its skip connection, and the feed-forward part downstream with its own.

    Attributes:
        site: The attention site.
        projection: Operations between the product with the values and the skip connection.
        skip_addition: The addition of the skip connection.
        post_norm: The normalisation right after it, in models that normalise there (as BERT does).
        output: The operation whose output leaves the block.
        value_input: What the values are computed from.
        value_input_edge: Where that is in the graph.
        input: What enters the block and is added by the skip connection.
        input_edge: Where that is in the graph.
    """

    site: AttentionSite
    projection: list[Operation]
    skip_addition: Add
    post_norm: Function | None
    output: Operation
    value_input: Tensor
    value_input_edge: GradientEdge
    input: Tensor
    input_edge: GradientEdge


def find_blocks(trace: Trace, without_last: bool = False) -> list[Block]:
    """The block around each attention site, nearest the input first.

    Args:
        trace: The recorded forward pass.
        without_last: Whether the last attention only pools tokens, and is none of the blocks.

    Raises:
        WhenceError: An attention has no skip connection around it.
    """
    graph = OperationGraph(trace)
    branches = []
    for site in trace.sites[: -1 if without_last else None]:
        branch = _find_branch(graph, site.product.index)
        if branch is None:
            raise WhenceError(
                f"The attention in {site.where} has no skip connection around it that whence can "
                f"find, which this method needs. Methods that read the attention maps alone, such "
                f"as 'gae', work without."
            )
        branches.append((site, branch))
    additions = {branch[-1] for _, branch in branches}
    return [_make_block(trace, graph, site, branch, additions) for site, branch in branches]


def _find_branch(graph: OperationGraph, index: int) -> list[int] | None:
    """Operations from a product of map and values to the addition that ends the attention."""
    branch = [index]
    while True:
        readers = graph.readers[branch[-1]]
        if len(readers) != 1:
            return None
        operation = graph.entries[readers[0]].operation
        branch.append(readers[0])
        if isinstance(operation, Add):
            return branch
        if operation.kind not in ("linear", "pass"):
            return None


def _make_block(
    trace: Trace,
    graph: OperationGraph,
    site: AttentionSite,
    branch: list[int],
    additions: set[int],
) -> Block:
    entry = trace.entries[branch[-1]]
    addition = entry.operation
    if not isinstance(addition, Add):
        raise TypeError(f"A branch ends at an addition, not at {addition.name}.")
    from_attention = [branch[-2] in graph.find_upstream(edge.node) for edge in entry.inputs]
    skip = from_attention.index(False) if False in from_attention else 0
    norm = _find_only_norm(graph, addition)
    output: Operation = norm or addition
    for reader in graph.readers[output.index]:
        feed_forward = graph.entries[reader].operation
        if isinstance(feed_forward, Add) and reader not in additions:
            output = feed_forward
            if norm is not None:
                output = _find_only_norm(graph, feed_forward) or feed_forward
            break
    product = site.product
    values = trace.entries[product.index].inputs[site.values_number]
    projection = _find_value_projection(graph, values.node)
    if projection is not None:
        value_input, edge = projection.x, trace.entries[projection.index].inputs[0]
    else:
        value_input = product.values if isinstance(product, ChunkedAttention) else product.b
        edge = values
    return Block(
        site=site,
        projection=[trace.entries[i].operation for i in branch[1:-1]],
        skip_addition=addition,
        post_norm=norm,
        output=output,
        value_input=value_input,
        value_input_edge=edge,
        input=addition.b if skip else addition.a,
        input_edge=entry.inputs[skip],
    )


def _find_only_norm(graph: OperationGraph, operation: Operation) -> Function | None:
    """The normalisation that alone reads an operation's output, if there is one."""
    readers = [graph.entries[i].operation for i in graph.readers[operation.index]]
    if len(readers) == 1 and is_norm(readers[0]) and isinstance(readers[0], Function):
        return readers[0]
    return None


def _find_value_projection(graph: OperationGraph, node: Node) -> Linear | None:
    """The linear map that values come out of."""
    upstream = (graph.entries[index].operation for index in graph.find_upstream(node))
    return next((operation for operation in upstream if isinstance(operation, Linear)), None)


# Sequences --------------------------------------------------------------------------------------


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
        queries, keys = _find_query_and_key_edges(graph, site)
        constant.append(not queries)
        merged.append(False)
        sources = _find_sources(graph, queries), _find_sources(graph, keys)
        # Queries and keys are projected from the same tensor, or both from constants.
        one_source = bool(sources[0] & sources[1]) or not any(sources)
        if site.query_count == site.key_count and one_source:
            unite(number, number + sites)
        values = trace.entries[site.product.index].inputs[site.values_number]
        into_keys = number + sites, site.key_count, [*keys, values]
        for end, length, edges in ((number, site.query_count, queries), into_keys):
            for other in _find_upstream_sites(graph, edges, products):
                if trace.sites[other].query_count == length:
                    unite(end, other)
                else:
                    merged[number] = True
    roots = [find_root(end) for end in range(2 * sites)]
    return [SiteSequences(roots[n], roots[n + sites], constant[n], merged[n]) for n in range(sites)]


def is_attention_pooling(trace: Trace, sequences: list[SiteSequences]) -> bool:
    """Whether the last attention only gathers the tokens of another sequence.

    Then no other attention is in the sequence of its queries.
    """
    last, site = sequences[-1], trace.sites[-1]
    alone = sum(of.queries == last.queries for of in sequences) == 1
    return last.is_cross and alone and site.query_count != site.key_count


def _find_query_and_key_edges(
    graph: OperationGraph, site: AttentionSite
) -> tuple[list[GradientEdge], list[GradientEdge]]:
    """Where queries and keys enter the product that scores them; nowhere if they are constant."""
    if isinstance(site.product, ChunkedAttention):
        queries, keys, _ = graph.entries[site.product.index].inputs
        return [queries], [keys]
    weights = graph.entries[site.product.index].inputs[1 if site.keys_first else 0]
    softmax = _find_nearest(graph, weights, lambda op: op.name == SOFTMAX)
    if softmax is None:
        return [], []
    products, into_softmax = MatMul | ConstantMatMul, graph.entries[softmax.index].inputs[0]
    scores = _find_nearest(graph, into_softmax, lambda op: isinstance(op, products))
    if scores is None:
        return [], []
    edges = list(graph.entries[scores.index].inputs)
    if isinstance(scores, ConstantMatMul):
        first, second = ([], edges) if scores.weight_first else (edges, [])
    else:
        first, second = edges[:1], edges[1:]
    return (second, first) if site.keys_first else (first, second)


def _find_nearest(
    graph: OperationGraph, edge: GradientEdge, matches: Callable[[Operation], bool]
) -> Operation | None:
    """The first operation upstream of an edge that matches."""
    waiting, seen = sorted(graph.find_upstream(edge.node), reverse=True), set[int]()
    while waiting:
        index = waiting.pop(0)
        if index in seen:
            continue
        seen.add(index)
        operation = graph.entries[index].operation
        if matches(operation):
            return operation
        for source in graph.entries[index].inputs:
            waiting += sorted(graph.find_upstream(source.node), reverse=True)
    return None


def _find_sources(graph: OperationGraph, edges: Iterable[GradientEdge]) -> set[Node | int]:
    """What the nearest projections upstream of some edges read."""
    sources: set[Node | int] = set()
    waiting = [(edge.node, i) for edge in edges for i in graph.find_upstream(edge.node)]
    seen: set[int] = set()
    while waiting:
        node, index = waiting.pop()
        entry = graph.entries[index]
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
    graph: OperationGraph, edges: Iterable[GradientEdge], products: dict[int, int]
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
        inputs = graph.entries[index].inputs
        waiting += [i for edge in inputs for i in graph.find_upstream(edge.node)]
    return found
