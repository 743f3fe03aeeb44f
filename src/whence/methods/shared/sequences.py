"""Sequences of tokens that attend to each other: which ones are related, and in which order."""

from torch.autograd.graph import Node

from whence.tracing.graph import AttentionLayer
from whence.tracing.recording import edge_of
from whence.tracing.trace import Trace
from whence.tracing.views import find_dependent, find_upstream


def has_unseen_queries(trace: Trace, layer: AttentionLayer) -> bool:
    """Whether tokens that do not depend on the explained input attend to another sequence."""
    if not layer.is_cross or layer.constant or layer.skip is None:
        return layer.is_cross and layer.constant
    leaves = {edge_of(leaf).node for leaf in trace.leaves}
    return not find_dependent([layer.skip.input_edge.node], leaves, trace.overwrites)[0]


def group_concurrent(trace: Trace, layers: list[AttentionLayer]) -> list[list[int]]:
    """Group the numbers of successive layers of which none reads what another one writes."""
    groups: list[list[int]] = []
    writing: set[Node] = set()
    for number, layer in enumerate(layers):
        products = {trace.entries[site.product.index].output.node for site in layer.sites}
        if not groups or not writing.isdisjoint(find_upstream(products)):
            groups.append([])
            writing = set()
        groups[-1].append(number)
        writing |= products
    return groups


def find_related_pairs(
    layers: list[AttentionLayer], groups: list[list[int]], first: int = 0
) -> set[tuple[int, int]]:
    """Pairs of sequences of which the one depends on the other through attention."""
    pairs: set[tuple[int, int]] = set()
    for numbers in groups:
        before = frozenset(pairs)
        for one in (layers[number] for number in numbers if number >= first):
            pairs |= {(one.queries, other) for of, other in before if of == one.keys}
            pairs.add((one.queries, one.keys))
    return pairs


def find_input_sequence(trace: Trace, layers: list[AttentionLayer]) -> int:
    """The sequence of the tokens that the input became: the one its first attention reads."""
    for layer in layers:
        product = layer.sites[0].product
        waiting: list[Node | None] = [trace.entries[product.index].output.node]
        seen: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if any(getattr(node, "variable", None) is place.leaf for place in trace.inputs):
                return layer.keys
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [upstream for upstream, _ in node.next_functions]
    raise AssertionError("some attention depends on the input")
