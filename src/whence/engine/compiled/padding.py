"""Pad the factors of attention's products, so that a GPU reads their rows in whole words.

A map of 197 keys in float32 has rows of 788 bytes. The fast kernels for products want rows that
start at multiples of 16 bytes. So maps get a few more columns, of zeros, which no product notices.
They are padded where they are computed, and all that reads them reads the padded memory: nothing
has to be copied.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from whence._util.torch_operators import (
    BATCHED_PRODUCT,
    PAD,
    RESHAPES,
    SLICE,
    TRANSPOSE,
    describe_output,
    recorded_value,
)

_ALIGNMENT = 16
# What is small would become much larger.
_LARGEST_SHARE = 1 / 16

_Added = tuple[int, int]
"""How many rows and columns are added."""


def pad_attention(graph: fx.Graph) -> None:
    """Pad the factors of products of batches of matrices, such as attention maps, in place.

    Args:
        graph: Operators as `write_nothing_in_place` leaves them: what is changed here may lie in
            another order of memory.
    """
    padded = dict[fx.Node, dict[_Added, fx.Node]]()
    for product in graph.find_nodes(op="call_function", target=BATCHED_PRODUCT):
        _pad_product(graph, product, padded)
    graph.eliminate_dead_code()


def _pad_product(
    graph: fx.Graph, product: fx.Node, padded: dict[fx.Node, dict[_Added, fx.Node]]
) -> None:
    a, b = product.args
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        raise RuntimeError("A product of matrices has two factors.")
    left, right = _value(a), _value(b)
    (rows, inner), columns = left.shape[-2:], right.shape[-1]
    unit = _ALIGNMENT // left.element_size()
    # Only what lies side by side in memory has to be padded, in the factors and in the product.
    add_rows = -rows % unit if left.stride(-1) != 1 else 0
    add_inner = -inner % unit if left.stride(-1) == 1 or right.stride(-1) != 1 else 0
    add_columns = -columns % unit
    sizes = (rows, add_rows), (inner, add_inner), (columns, add_columns)
    if all(added == 0 for _, added in sizes):
        return
    if any(added > size * _LARGEST_SHARE for size, added in sizes):
        return
    factors = (
        _pad_factor(graph, a, (add_rows, add_inner), padded),
        _pad_factor(graph, b, (add_inner, add_columns), padded),
    )
    with graph.inserting_before(product):
        whole = _add(graph, BATCHED_PRODUCT, *factors)
        inside = _cut(graph, whole, rows, columns)
        product.replace_all_uses_with(inside)
    padded[inside] = {(add_rows, add_columns): whole}  # zeros times anything are zeros
    graph.erase_node(product)


def _pad_factor(
    graph: fx.Graph,
    factor: fx.Node,
    added: _Added,
    padded: dict[fx.Node, dict[_Added, fx.Node]],
) -> fx.Node:
    """A factor with rows and columns of zeros, as a view of the padded tensor it is part of."""
    if added == (0, 0):
        return factor
    views = list[fx.Node]()
    owner = factor
    while _keeps_matrices(owner):
        views.append(owner)
        owner = owner.all_input_nodes[0]
        if views[-1].target is TRANSPOSE:
            added = added[::-1]
    found = _pad_owner(graph, owner, added, padded)
    with graph.inserting_before(factor):
        for view in reversed(views):
            if view.target is TRANSPOSE:
                found = _add(graph, TRANSPOSE, found, *view.args[1:])
            else:
                shape = [*_value(view).shape[:-2], *_value(found).shape[-2:]]
                found = _add(graph, view.target, found, shape)
    return found


def _pad_owner(
    graph: fx.Graph, owner: fx.Node, added: _Added, padded: dict[fx.Node, dict[_Added, fx.Node]]
) -> fx.Node:
    """A padded tensor. All that reads the tensor reads the first padded one from then on."""
    known = padded.setdefault(owner, {})
    if added not in known:
        users = list(owner.users)
        with graph.inserting_after(owner):
            whole = _add(graph, PAD, owner, [0, added[1], 0, added[0]])
        if owner.op == "call_function" and not known:
            with graph.inserting_before(whole.next):
                inside = _cut(graph, whole, *_value(owner).shape[-2:])
            for user in users:
                user.replace_input_with(owner, inside)
            padded[inside] = known
        known[added] = whole
    return known[added]


def _keeps_matrices(node: fx.Node) -> bool:
    """Whether an operator gives the matrices of its input, in other batches or transposed."""
    if node.op != "call_function" or node.target not in (TRANSPOSE, *RESHAPES):
        return False
    shape, before = _value(node).shape, _value(node.all_input_nodes[0]).shape
    if node.target is not TRANSPOSE:
        return len(before) > 1 and shape[-2:] == before[-2:] and shape.numel() == before.numel()
    turned = {int(str(dim)) % len(shape) for dim in node.args[1:]}
    return turned == {len(shape) - 2, len(shape) - 1}


def _cut(graph: fx.Graph, whole: fx.Node, rows: int, columns: int) -> fx.Node:
    """The part of a padded tensor that is no padding."""
    for dim, size in ((-2, rows), (-1, columns)):
        if _value(whole).shape[dim] != size:
            whole = _add(graph, SLICE, whole, dim, 0, size)
    return whole


def _add(graph: fx.Graph, target: Any, *arguments: Any) -> fx.Node:
    return describe_output(graph.call_function(target, arguments))


def _value(node: fx.Node) -> Tensor:
    value = recorded_value(node)
    if value is None:
        raise RuntimeError("A factor of a product is one tensor.")
    return value
