"""Layers of attention: the sites that are heads of one, and the sequences they read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch.autograd.graph import GradientEdge, Node

from whence.errors import WhenceError
from whence.tracing.graph.blocks import Block, find_operations, has_post_norm, make_block
from whence.tracing.graph.nodes import NodeGraph, has_size_of, has_tokens, operation_of
from whence.tracing.graph.sums import SkipConnection, find_skip, find_sum
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.ops.base import Operation
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.products import ConstantMatMul, MatMul
from whence.tracing.ops.softmax import SOFTMAX
from whence.tracing.recording import edge_of
from whence.tracing.trace import Trace


@dataclass
class AttentionLayer:
    """Attention sites that are heads of one attention, and the sequences of tokens they join.

    Sequences are given by number. Most layers are one site; a model that computes its heads one by
    one has a site for each.

    Attributes:
        sites: The sites.
        queries: The sequence of the tokens that attend.
        keys: The sequence of those that are attended to; the same in self-attention.
        constant: Whether the queries do not depend on the input.
        merged: Whether some of these tokens were made of those of another sequence: merged, split
            off or put together.
        skip: The sum with the skip connection, if there is one.
        addition: The sum with whatever leads around the attention, if there is one: the skip
            connection, which may be projected or pooled on its way.
    """

    sites: list[AttentionSite]
    queries: int
    keys: int
    constant: bool
    merged: bool
    skip: SkipConnection | None
    addition: Operation | None = None

    @property
    def is_cross(self) -> bool:
        """Whether the attention reads another sequence than its own."""
        return self.queries != self.keys

    @property
    def query_count(self) -> int:
        """The number of queries."""
        return self.sites[0].query_count

    @property
    def key_count(self) -> int:
        """The number of keys."""
        return self.sites[0].key_count

    @property
    def where(self) -> str:
        """The module it is computed in."""
        return self.sites[0].where


@dataclass
class Structure:
    """What was found in the graph of a trace.

    Attributes:
        graph: The nodes.
        layers: The layers of attention, in the order of computation.
    """

    graph: NodeGraph
    layers: list[AttentionLayer]


def find_layers(trace: Trace) -> list[AttentionLayer]:
    """The layers of attention that the target depends on, in the order of computation."""
    return find_structure(trace).layers


def is_attention_pooling(layers: list[AttentionLayer]) -> bool:
    """Whether the last attention only gathers the tokens of another sequence.

    Then no other attention is in the sequence of its queries.
    """
    last = layers[-1]
    alone = sum(layer.queries == last.queries for layer in layers) == 1
    return last.is_cross and alone


def is_sequential(trace: Trace) -> bool:
    """Whether tokens pass all layers in turn, and the target reads those that leave the last.

    Then nothing leads around a layer but its skip connection, and around all of them at most.
    """
    graph, layers = find_structure(trace).graph, find_layers(trace)
    products = {node for layer in layers for node in _product_nodes(trace, layer)}
    inputs = {edge_of(leaf).node for leaf in trace.leaves}

    def leads_around(starts: Iterable[Node], ends: set[Node], to_input: bool) -> bool:
        """Whether another attention, or the input, is upstream of nodes other than through ends."""
        waiting, seen = list(starts), set(ends)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            sources = [source.node for source in graph.sources(node)]
            if node in products or (to_input and node in inputs):
                return True
            waiting += sources
        return False

    left: dict[int, set[Node]] = {}  # what leaves the last layer of a sequence so far
    for layer in layers:
        before, own = left.get(layer.queries), _product_nodes(trace, layer)
        leaves = own
        if layer.skip is not None:
            leaves = {trace.entries[layer.skip.addition.index].output.node}
            entering = {layer.skip.input_edge.node}
            around = leads_around(leaves, own | entering, to_input=True)
            if around or leads_around(entering, before or set(), to_input=before is not None):
                return False
        elif (before := left.get(layer.keys)) is not None:
            read = {source.node for node in own for source in graph.sources(node)}
            if leads_around(read, before, to_input=True):
                return False
        left[layer.queries] = leaves
    return not leads_around(trace.tops, left[layers[-1].queries], to_input=False)


def _product_nodes(trace: Trace, layer: AttentionLayer) -> set[Node]:
    return {trace.entries[site.product.index].output.node for site in layer.sites}


def find_blocks(trace: Trace, without_last: bool = False) -> list[Block]:
    """The block around each layer of attention, nearest the input first.

    Args:
        trace: The recorded forward pass.
        without_last: Whether the last attention only pools tokens, and is none of the blocks.

    Raises:
        WhenceError: An attention has no skip connection around it.
    """
    structure = find_structure(trace)
    layers = structure.layers[: -1 if without_last else None]
    graph, skips = structure.graph, [one.skip for one in structure.layers if one.skip is not None]
    additions = {trace.entries[skip.addition.index].output.node for skip in skips}
    post_norm = has_post_norm(trace, graph, skips, additions)
    blocks = []
    for layer in layers:
        if layer.skip is None:
            raise WhenceError(
                f"The attention in {layer.where} has no skip connection around it that whence can "
                f"find, which this method needs. Methods that read the attention maps alone, such "
                f"as 'gae', work without."
            )
        blocks.append(make_block(trace, graph, layer.sites, layer.skip, additions, post_norm))
    return blocks


def find_projection(
    trace: Trace, site: AttentionSite, addition: Operation | None
) -> list[Operation]:
    """Operations between the product of map and values and a sum, in their order."""
    return find_operations(trace, find_structure(trace).graph, site, addition)


def find_structure(trace: Trace) -> Structure:
    """The nodes of the graph and the layers of attention in it, found once."""
    known = trace.structure
    if isinstance(known, Structure):
        return known
    graph = NodeGraph(trace)
    trace.structure = Structure(graph, _join_heads(trace, graph, _Sequences(trace, graph).layers()))
    return trace.structure


def _join_heads(
    trace: Trace, graph: NodeGraph, layers: list[AttentionLayer]
) -> list[AttentionLayer]:
    """Make one layer of neighbours that lie side by side: of the same sequences, added as one."""
    joined: list[AttentionLayer] = []
    for layer in layers:
        before = joined[-1] if joined else None
        if before is not None and _are_heads_of_one(trace, graph, before, layer):
            before.sites += layer.sites
        else:
            joined.append(layer)
    return joined


def _are_heads_of_one(trace: Trace, graph: NodeGraph, a: AttentionLayer, b: AttentionLayer) -> bool:
    counts = (a.query_count, a.key_count) == (b.query_count, b.key_count)
    ends = [trace.entries[one.sites[-1].product.index].output.node for one in (a, b)]
    if not counts or a.keys != b.keys or graph.is_upstream(*ends):
        return False
    if a.skip is None or b.skip is None:
        both_constant = a.constant and b.constant
        return a.skip is b.skip and (a.queries == b.queries or both_constant)
    same_input = a.skip.input_edge == b.skip.input_edge
    return same_input and a.skip.addition is b.skip.addition and a.queries == b.queries


# Sequences ---------------------------------------------------------------------------------------


class _Sequences:
    """Numbers the sequences of tokens, attention by attention in the order of computation.

    The nodes of a residual stream belong to a sequence: what enters a block, the sums inside of it
    and the attention's output. Queries, keys and values belong to the sequence whose nodes are met
    first on the way upstream, through whatever operations.
    """

    def __init__(self, trace: Trace, graph: NodeGraph) -> None:
        self._trace = trace
        self._graph = graph
        self._of_node: dict[Node, int] = {}
        self._of_leaves: dict[tuple[frozenset[Node], int], int] = {}
        self._lengths: list[int] = []
        self._inputs = {edge_of(leaf).node for leaf in trace.leaves}

    def layers(self) -> list[AttentionLayer]:
        """One layer for each attention site."""
        return [self._make_layer(site) for site in self._trace.sites]

    def _make_layer(self, site: AttentionSite) -> AttentionLayer:
        trace, graph = self._trace, self._graph
        skip = find_skip(trace, graph, site)
        queries, keys = _find_query_and_key_edges(trace, graph, site)
        values = trace.entries[site.product.index].inputs[site.values_number]
        constant = not queries and skip is None
        if skip is None:
            number, merged = self._find_sequence(queries, site.query_count)
        else:
            number, merged = self._find_stream(skip.input_edge, site.query_count)
            merged |= not has_tokens(skip.input_edge, trace.batch, site.query_count)
        nodes = [trace.entries[site.product.index].output.node]
        if skip is not None:
            nodes += [trace.entries[skip.addition.index].output.node, skip.input_edge.node]
        self._of_node.update((node, number) for node in nodes if node not in self._of_node)
        of_keys, keys_merged = self._find_sequence([*keys, values], site.key_count)
        addition = find_sum(trace, graph, site) if skip is None else skip.addition
        is_merged = merged or keys_merged
        return AttentionLayer([site], number, of_keys, constant, is_merged, skip, addition)

    def _find_stream(self, entering: GradientEdge, length: int) -> tuple[int, bool]:
        """The sequence of a residual stream that enters a block, and whether others made it."""
        if self._walk_upstream([entering])[0]:
            return self._find_sequence([entering], length)
        number = self._add_sequence(length)
        roots = self._graph.find_roots(entering.node)
        if len(roots) == 1:  # what it is but moved or shifted from, such as embeddings
            self._of_node.update((root, number) for root in roots if has_size_of(root, entering))
        return number, False

    def _find_sequence(self, edges: Iterable[GradientEdge], length: int) -> tuple[int, bool]:
        """The sequence that some edges belong to, and whether it was made of others."""
        numbers, leaves = self._walk_upstream(edges)
        same = {number for number in numbers if self._lengths[number] == length}
        if len(same) == 1 == len(numbers):
            return same.pop(), False
        if numbers:
            return self._add_sequence(length), True
        key = leaves, length  # without leaves: constants
        if key not in self._of_leaves:
            self._of_leaves[key] = self._add_sequence(length)
        return self._of_leaves[key], False

    def _add_sequence(self, length: int) -> int:
        self._lengths.append(length)
        return len(self._lengths) - 1

    def _walk_upstream(self, edges: Iterable[GradientEdge]) -> tuple[set[int], frozenset[Node]]:
        """Sequences, and else inputs of the model, that are met first upstream of some edges."""
        numbers, leaves = set[int](), set[Node]()
        waiting, seen = [edge.node for edge in edges], set[Node]()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self._of_node:
                numbers.add(self._of_node[node])
                continue
            sources = [source.node for source in self._graph.sources(node)]
            waiting += sources
            if node in self._inputs:
                leaves.add(node)
        return numbers, frozenset(leaves)


def _find_query_and_key_edges(
    trace: Trace, graph: NodeGraph, site: AttentionSite
) -> tuple[list[GradientEdge], list[GradientEdge]]:
    """Where queries and keys enter the product that scores them; nowhere if they are constant."""
    entry = trace.entries[site.product.index]
    if isinstance(site.product, ChunkedAttention):
        queries, keys, _ = entry.inputs
        return [queries], [keys]
    weights = entry.inputs[1 if site.keys_first else 0]
    softmax = _find_nearest(graph, weights, lambda op: op.name == SOFTMAX)
    if softmax is None:
        return [], []
    into_softmax = trace.entries[softmax.index].inputs[0]
    # Other products may add to the scores, of queries and constant positions say.
    scores = _find_nearest(graph, into_softmax, lambda op: isinstance(op, MatMul))
    scores = scores or _find_nearest(graph, into_softmax, lambda op: isinstance(op, ConstantMatMul))
    if scores is None:
        return [], []
    edges = list(trace.entries[scores.index].inputs)
    if isinstance(scores, ConstantMatMul):
        first, second = ([], edges) if scores.weight_first else (edges, [])
    else:
        first, second = edges[:1], edges[1:]
    return (second, first) if site.keys_first else (first, second)


def _find_nearest(
    graph: NodeGraph, edge: GradientEdge, matches: Callable[[Operation], bool]
) -> Operation | None:
    """The first operation upstream of an edge that matches, other than through linear maps."""
    waiting, seen = [edge.node], set[Node]()
    while waiting:
        node = waiting.pop(0)
        if node in seen:
            continue
        seen.add(node)
        operation = operation_of(node)
        if operation is not None and matches(operation):
            return operation
        if operation is None or operation.kind != "linear":
            waiting += [source.node for source in graph.sources(node)]
    return None
