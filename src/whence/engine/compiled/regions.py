"""Split a graph of operators where it repeats, so that repeated blocks become equal regions.

The blocks of a Transformer are alike, and so are their forward, gradient and relevance: a region
that is compiled once serves all of its repetitions.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
from torch import fx

from whence._util.torch_operators import PRODUCTS, recorded_value
from whence.engine.compiled.recomputing import list_recomputed

# A shorter repetition is not worth a region of its own.
_SHORTEST_PERIOD = 24


class Region(NamedTuple):
    """Consecutive nodes of a graph.

    Attributes:
        graph: Copies of the nodes as a graph of their own.
        code: The graph as text: equal for regions that compute the same.
        inputs: Names of the values that it reads.
        outputs: Names of the values that later regions or the caller need of it.
        released: Names of inputs that nobody needs afterwards.
    """

    graph: fx.Graph
    code: str
    inputs: list[str]
    outputs: list[str]
    released: list[str]


class _Repetition(NamedTuple):
    """Nodes that repeat: the number of the first, the length of a period, and their number."""

    start: int
    period: int
    times: int


def split_regions(graph: fx.Graph, *, recompute: bool = False) -> tuple[list[Region], list[str]]:
    """Split a graph into regions, many of which are equal.

    Args:
        graph: Operators, none of which writes in place.
        recompute: Whether regions compute again what is cheap to get from values that are kept
            for them anyway, such as activations: that takes less memory.

    Returns:
        The regions in their order, and the names of the values that the graph returns.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    returned = cast("list[fx.Node]", graph.output_node().args[0])
    between = (_pass_outputs(nodes, number) for number in _find_boundaries(nodes))
    boundaries = sorted({0, *between, len(nodes)})
    parts = [nodes[start:stop] for start, stop in pairwise(boundaries)]
    computed = list_recomputed(parts, returned) if recompute else [[] for _ in parts]
    regions: list[Region] = []
    needed = set(returned)
    for part, again in reversed(list(zip(parts, computed, strict=True))):
        regions.append(_copy_region(part, again, needed))
    return regions[::-1], [node.name for node in returned]


def _copy_region(part: list[fx.Node], again: list[fx.Node], needed: set[fx.Node]) -> Region:
    """Copy some nodes into a region, under names that are equal in equal regions.

    Args:
        part: The nodes.
        again: Nodes of earlier regions that are computed again.
        needed: What later regions and the caller need; what this region needs is added.
    """
    outputs = [node for node in part if node in needed]
    used = set(outputs)
    for node in reversed([*again, *part]):
        if node in used or node.is_impure():
            used.update((node, *node.all_input_nodes))
    nodes = [node for node in (*again, *part) if node in used]
    inside = set(nodes)
    inputs = dict.fromkeys(x for node in nodes for x in node.all_input_nodes if x not in inside)
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for number, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"input_{number}")
    for number, node in enumerate(nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].name = f"node_{number}"
    graph.output([copies[node] for node in outputs])
    released = [node.name for node in inputs if node not in needed]
    needed.difference_update(outputs)
    needed.update(inputs)
    return Region(
        graph,
        str(graph),
        inputs=[node.name for node in inputs],
        outputs=[node.name for node in outputs],
        released=released,
    )


def _find_boundaries(nodes: list[fx.Node], offset: int = 0) -> Iterator[int]:
    """Find the numbers of nodes before which to split: between all periods of all repetitions."""
    repetition = _find_repetition(nodes)
    if repetition is None:
        return
    start, period, times = repetition
    stop = start + period * times
    yield from range(offset + start, offset + stop + 1, period)
    yield from _find_boundaries(nodes[:start], offset)
    yield from _find_boundaries(nodes[stop:], offset + stop)


def _pass_outputs(nodes: list[fx.Node], number: int) -> int:
    """Find the next node that is none of an operator's several outputs, which stay with it."""
    while number < len(nodes) and nodes[number].target is operator.getitem:
        number += 1
    return number


def _find_repetition(nodes: list[fx.Node]) -> _Repetition | None:
    """Find the repetition that leaves the fewest nodes to compile."""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(_describe(node), len(numbers)) for node in nodes])
    most_saved, best = 0, None
    for period in range(_SHORTEST_PERIOD, len(codes) // 2 + 1):
        equal = np.concatenate(([False], codes[:-period] == codes[period:], [False]))
        edges = np.flatnonzero(np.diff(equal.astype(np.int8)))
        lengths = edges[1::2] - edges[::2]
        if not len(lengths):
            continue
        longest = int(lengths.argmax())
        saved = int(lengths[longest]) // period * period
        if saved > most_saved:
            most_saved, best = saved, (int(edges[2 * longest]), period, int(lengths[longest]))
    return None if best is None else _choose_start(nodes, *best)


def _choose_start(nodes: list[fx.Node], start: int, period: int, equal: int) -> _Repetition:
    """Shift a repetition to begin with a matrix product, where the fewest bytes cross over.

    Args:
        nodes: All of them.
        start: Where the repetition begins at the earliest.
        period: The length of a period.
        equal: How many nodes in a row are like those one period later.
    """
    starts = [start + n for n in range(equal % period + 1) if nodes[start + n].target in PRODUCTS]
    best = min(starts or [start], key=lambda number: _count_crossing_bytes(nodes, number, period))
    return _Repetition(best, period, (start + equal - best) // period + 1)


def _count_crossing_bytes(nodes: list[fx.Node], number: int, period: int) -> int:
    """Count the bytes computed in the period before a node that the period after it reads."""
    before = set(nodes[max(0, number - period) : number])
    after = nodes[number : number + period]
    crossing = {source for node in after for source in node.all_input_nodes if source in before}
    values = map(recorded_value, crossing)
    return sum(value.nbytes for value in values if value is not None)


def _describe(node: fx.Node) -> str:
    """Describe an operator, its settings and its output, but not which tensors it reads."""
    value = recorded_value(node)
    output = () if value is None else (tuple(value.shape), value.dtype)
    settings = fx.node.map_arg(node.args, lambda _: None)
    return f"{node.target} {settings} {output}"
