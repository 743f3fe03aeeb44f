"""Blocks: the skip connection and the feed-forward part around each attention, from the graph."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence.errors import WhenceError
from whence.tracing.ops.attention import AttentionSite, ChunkedAttention
from whence.tracing.ops.base import Add, Function, Operation, is_norm
from whence.tracing.ops.products import Linear
from whence.tracing.trace import Trace


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
    for index in graph.find_upstream(node):
        operation = graph.entries[index].operation
        if isinstance(operation, Linear):
            return operation
    return None
