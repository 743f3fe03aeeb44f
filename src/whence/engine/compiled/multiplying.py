"""Let oneDNN compute the products of a graph for a CPU, where it is quicker than MKL."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from whence._util.torch_operators import (
    PRODUCT,
    PRODUCT_AND_SUM,
    TRANSPOSE_MATRIX,
    describe_output,
    recorded_value,
)
from whence._util.torch_products import (
    ONEDNN_PRODUCT,
    QUICK_PRODUCT,
    has_quick_form,
    is_quicker_by_onednn,
)


def multiply_graph_quickly(graph: fx.Graph) -> None:
    """Let oneDNN compute what it is quicker at, in place.

    Args:
        graph: Operators on a CPU, none of which writes in place.
    """
    is_quicker = is_quicker_by_onednn() and torch._C._get_mkldnn_enabled()
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is ONEDNN_PRODUCT:
            _replace(graph, node, node.args[:3])
        elif node.target in (PRODUCT, PRODUCT_AND_SUM) and is_quicker:
            *added, left, right = node.args
            with graph.inserting_before(node):
                weight = describe_output(graph.call_function(TRANSPOSE_MATRIX, (right,)))
            factors = left, weight, *added
            if not node.kwargs and has_quick_form(*map(_make_like, factors)):
                _replace(graph, node, factors)
    graph.eliminate_dead_code()


def _replace(graph: fx.Graph, node: fx.Node, factors: tuple[fx.node.Argument, ...]) -> None:
    with graph.inserting_before(node):
        product = describe_output(graph.call_function(QUICK_PRODUCT, factors))
    node.replace_all_uses_with(product)
    graph.erase_node(node)


def _make_like(node: fx.node.Argument) -> Tensor:
    """Make a tensor like the output of a node, without values."""
    value = recorded_value(node) if isinstance(node, fx.Node) else None
    return torch.empty(0) if value is None else value
