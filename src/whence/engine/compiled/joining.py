"""Join matrix products that have one factor in common into a single product.

Queries, keys and values are three products of the same tokens, and a rule for relevance multiplies
with the positive and with the negative weights. A GPU computes a product in tiles, as many at a
time as it has processors. The last of them leave some idle: the more, the smaller a product is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor, fx

from whence._util.torch_operators import (
    AS_STRIDED,
    CONCATENATE,
    PRODUCT,
    PRODUCT_AND_SUM,
    SLICE,
    TRANSPOSE_MATRIX,
    describe_output,
    find_owner,
    is_random,
    recorded_value,
)

# Products of so many elements keep a GPU busy by themselves.
_LARGEST = 2**25
# Of so many products in a row, some are joined: what is computed early is kept for longer.
_LARGEST_DISTANCE = 24


def join_products(graph: fx.Graph, constants: Sequence[fx.Node]) -> None:
    """Join products of one left factor with right factors that are made of constants, in place.

    Args:
        graph: Operators as `write_nothing_in_place` leaves them: what is changed here may lie in
            another order of memory.
        constants: Nodes of constants, such as weights.
    """
    joining = _Joining(graph, constants)
    latest: dict[Hashable, list[fx.Node]] = {}
    groups: list[list[fx.Node]] = []
    places: dict[fx.Node, int] = {}
    for product in [node for node in graph.nodes if node.target in (PRODUCT, PRODUCT_AND_SUM)]:
        places[product] = len(places)
        if not joining.can_join(product):
            continue
        key = product.target, joining.number(_left(product)), _value(product).dtype
        group = latest.get(key)
        if group is None or places[product] - places[group[0]] > _LARGEST_DISTANCE:
            group = latest[key] = []
            groups.append(group)
        group.append(product)
    for group in groups:
        if len(group) > 1:
            joining.join(group)
    graph.eliminate_dead_code()


class _Joining:
    """Joins products of a graph.

    Args:
        graph: The graph.
        constants: Nodes of constants.
    """

    def __init__(self, graph: fx.Graph, constants: Sequence[fx.Node]) -> None:
        self._graph = graph
        self._order = {node: float(place) for place, node in enumerate(graph.nodes)}
        self._constant = set(constants)
        # Whose memory is read by strides of its own: a part of a joined product has others.
        strided = graph.find_nodes(op="call_function", target=AS_STRIDED)
        self._read_elsewhere = {find_owner(node) for node in strided}
        self._numbers: dict[fx.Node, int] = {}
        known: dict[Hashable, int] = {}
        for node in graph.nodes:
            key: Hashable = node
            if node.op == "call_function" and not is_random(node):
                if self._constant.issuperset(node.all_input_nodes):
                    self._constant.add(node)
                key = node.target, repr(fx.node.map_arg((node.args, node.kwargs), self._name))
            self._numbers[node] = known.setdefault(key, len(known))

    def _name(self, node: fx.Node) -> str:
        return f"%{self._numbers[node]}"

    def number(self, node: fx.Node) -> int:
        """A number that nodes share which compute the same, by the same operators."""
        return self._numbers[node]

    def can_join(self, product: fx.Node) -> bool:
        """Whether all but the left factor is made of constants, and a GPU would not be busy."""
        right, *added = _list_others(product)
        if product in self._constant or product in self._read_elsewhere:
            return False  # of what is a constant itself, another factor may be made
        columns = _value(product).shape[1:]
        is_plain = not product.kwargs and all(_value(one).shape == columns for one in added)
        is_small = _value(product).numel() <= _LARGEST
        return is_plain and is_small and self._constant.issuperset((right, *added))

    def join(self, group: Sequence[fx.Node]) -> None:
        """Compute one product in place of several of one left factor."""
        first = group[0]
        for product in group:
            for other in _list_others(product):
                self._move_before(other, first)
        factors = zip(*map(_list_others, group), strict=True)
        with self._graph.inserting_before(first):
            right, *added = map(self._concatenate, factors)
            whole = self._add(first.target, *added, _left(first), right)
            stop = 0
            for product in group:
                start, stop = stop, stop + _value(product).shape[1]
                part = self._add(SLICE, whole, 1, start, stop)
                product.replace_all_uses_with(part)
        for product in group:
            self._graph.erase_node(product)

    def _concatenate(self, factors: tuple[fx.Node, ...]) -> fx.Node:
        """Several right factors beside each other, or several vectors that are added."""
        if all(factor.target is TRANSPOSE_MATRIX for factor in factors):  # keeps rows in one piece
            below = self._add(CONCATENATE, [factor.args[0] for factor in factors], 0)
            return self._add(TRANSPOSE_MATRIX, below)
        return self._add(CONCATENATE, list(factors), _value(factors[0]).dim() - 1)

    def _add(self, target: Any, *arguments: Any) -> fx.Node:
        return describe_output(self._graph.call_function(target, arguments))

    def _move_before(self, node: fx.Node, place: fx.Node) -> None:
        """Have a node that is made of constants computed before another, where it is not."""
        if self._order[node] < self._order[place]:
            return
        for needed in node.all_input_nodes:
            self._move_before(needed, place)
        place.prepend(node)
        self._order[node] = self._order[place] - 0.5


def _left(product: fx.Node) -> fx.Node:
    left = product.args[-2]
    if not isinstance(left, fx.Node):
        raise RuntimeError("A product of matrices has two factors.")
    return left


def _list_others(product: fx.Node) -> list[fx.Node]:
    """The right factor of a product, and what is added to it, if anything is."""
    *added, _, right = product.args
    others = [right, *added]
    if not all(isinstance(one, fx.Node) for one in others):
        raise RuntimeError("A product of matrices has two factors.")
    return others  # type: ignore[return-value]


def _value(node: fx.Node) -> Tensor:
    value = recorded_value(node)
    if value is None:
        raise RuntimeError("A factor of a product is one tensor.")
    return value
