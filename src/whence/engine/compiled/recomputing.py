"""Values that are computed again where they are needed, in place of being kept in memory.

A backward pass reads much of what the forward pass computed. Of that, an activation, a normalised
tensor or a copy in another order can be had again from one tensor that is kept anyway. Fused with
what reads it, that costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from whence._util.torch_operators import is_cheap, is_view, recorded_value

# Beside the one tensor that an operator is computed from, all others are small, such as weights.
_SMALL = 1 / 8
# A longer chain of operators is not computed again.
_LONGEST_CHAIN = 6


def list_recomputed(
    parts: Sequence[Sequence[fx.Node]], returned: Sequence[fx.Node]
) -> list[list[fx.Node]]:
    """List for each part of a graph the earlier nodes that it computes again, in their order.

    Args:
        parts: Consecutive nodes.
        returned: What the graph returns.
    """
    part_of = {node: number for number, part in enumerate(parts) for node in part}
    order = {node: number for number, node in enumerate(part_of)}
    kept_until = _find_last_uses(parts, returned)
    listed = []
    for number, part in enumerate(parts):
        found = dict[fx.Node, None]()
        for source in dict.fromkeys(x for node in part for x in node.all_input_nodes):
            # What comes from the part before is at hand.
            if part_of.get(source, number) < number - 1:
                chain = _find_chain(source, number, kept_until) or []
                if not all(map(is_view, chain)):
                    found.update(dict.fromkeys(chain))
        listed.append(sorted(found, key=order.__getitem__))
    return listed


def _find_last_uses(
    parts: Sequence[Sequence[fx.Node]], returned: Sequence[fx.Node]
) -> dict[fx.Node, int]:
    """Find for each tensor that owns memory the last part that reads it, or a view of it."""
    last = dict[fx.Node, int]()
    for number, part in enumerate(parts):
        last.update(
            (_find_owner(source), number) for node in part for source in node.all_input_nodes
        )
    last.update((_find_owner(node), len(parts)) for node in returned)
    return last


def _find_chain(
    node: fx.Node, number: int, kept_until: dict[fx.Node, int], length: int = _LONGEST_CHAIN
) -> list[fx.Node] | None:
    """Find the operators that give a value from what is kept; None if there are none.

    Args:
        node: Gives the value.
        number: The part that needs it.
        kept_until: Until which part tensors that own memory are kept.
        length: How long the chain may be.
    """
    if length == 0 or not _is_cheap_from_one(node):
        return None
    chain = [node]
    for source in node.all_input_nodes:
        if source.op == "placeholder":
            continue
        before = _find_chain(source, number, kept_until, length - 1)
        if before is not None:
            chain += before
        elif recorded_value(source) is None or kept_until.get(_find_owner(source), -1) < number:
            return None  # of several outputs, each is kept by itself
    return chain


def _is_cheap_from_one(node: fx.Node) -> bool:
    """Whether an operator does little with each element of one large tensor."""
    if node.op != "call_function" or is_view(node):
        return node.op == "call_function"
    sizes = sorted((_count_bytes(source) for source in node.all_input_nodes), reverse=True)
    return is_cheap(node) and bool(sizes) and all(size <= _SMALL * sizes[0] for size in sizes[1:])


def _count_bytes(node: fx.Node) -> int:
    value = recorded_value(node)
    return 0 if value is None else value.nbytes


def _find_owner(node: fx.Node) -> fx.Node:
    """Find the node whose output owns the memory that a node's output views."""
    while node.op == "call_function" and is_view(node):
        node = node.all_input_nodes[0]
    return node
