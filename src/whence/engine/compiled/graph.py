"""Record a computation, backward passes included, as one graph of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch.func import functionalize

from whence._util.torch_graphs import trace_to_graph
from whence._util.torch_internals import TreeSpec, flatten_tree
from whence._util.torch_operators import (
    IDENTITIES,
    INDEX,
    find_owner,
    has_dynamic_shape,
    list_written,
    make_views_reshapes,
    recorded_dtype,
)


class RecordedGraph(NamedTuple):
    """The operators of a computation.

    Attributes:
        graph: Takes the inputs, then the constants; returns a flat list of tensors.
        constants: Tensors that the computation reads beside its inputs, such as weights.
        structure: The containers in which the computation returned its tensors.
    """

    graph: fx.Graph
    constants: list[Tensor]
    structure: TreeSpec


def record_graph(compute: Callable[..., object], inputs: Sequence[Tensor]) -> RecordedGraph:
    """Run a computation once and record its operators, none of which writes to what it is given.

    Args:
        compute: Takes tensors and returns containers of tensors; it reads no values.
        inputs: Example arguments, whose shapes the graph is for.

    Raises:
        RuntimeError: The shape of an intermediate tensor depends on values, or another run would
            find other constants.
    """
    structure: TreeSpec

    def compute_flat(*args: Tensor) -> list[Tensor]:
        nonlocal structure
        leaves, structure = flatten_tree(compute(*args))
        return leaves

    graph, constants = trace_to_graph(compute_flat, inputs)
    _check_static_shapes(graph)
    _remove_identities(graph)
    if any(find_owner(node).op == "placeholder" for node in list_written(graph)):
        raise RuntimeError("something is written to a tensor that outlives the computation")
    return RecordedGraph(graph, constants, structure)


def write_nothing_in_place(recorded: RecordedGraph, inputs: Sequence[Tensor]) -> RecordedGraph:
    """The same computation by operators of which none writes in place, as compilers want it.

    They change shapes whatever the order of memory is.

    Args:
        recorded: The computation, which is of no use afterwards.
        inputs: Arguments of the shapes that it is for.
    """
    graph, constants, structure = recorded
    make_views_reshapes(graph)  # out of place, a tensor may have other strides than in place
    with torch.no_grad():
        functional = functionalize(fx.GraphModule({}, graph), remove="mutations")
        graph, _ = trace_to_graph(functional, [*inputs, *constants])
    make_views_reshapes(graph)  # and what a compiler puts out may have others again
    _remove_identities(graph)
    return RecordedGraph(graph, constants, structure)


def _check_static_shapes(graph: fx.Graph) -> None:
    """Refuse operators whose output shape depends on values: the graph would fix that shape."""
    for node in graph.nodes:
        if has_dynamic_shape(node) and (node.target is not INDEX or _may_index_by_mask(node)):
            raise RuntimeError(f"the shape of what `{node.target}` gives depends on values")


def _may_index_by_mask(index: fx.Node) -> bool:
    """Tell whether an index may be a mask, which selects as many elements as it has true values."""
    dtypes = map(recorded_dtype, index.all_input_nodes[1:])
    return any(dtype in (None, torch.bool, torch.uint8) for dtype in dtypes)


def _remove_identities(graph: fx.Graph) -> None:
    """Remove operators that matter to autograd alone, and those whose outputs nobody uses."""
    for node in list(graph.nodes):
        if node.target in IDENTITIES:
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()
