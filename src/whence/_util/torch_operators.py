"""Operators in graphs: private and undocumented parts of torch, as in `torch_internals`."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from whence._util.torch_products import QUICK_PRODUCT

# Operators of a graph, as the targets of its nodes.
IDENTITIES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
INDEX = torch.ops.aten.index.Tensor
PRODUCT = torch.ops.aten.mm.default
PRODUCT_AND_SUM = torch.ops.aten.addmm.default  # what is added comes first
PRODUCTS = (
    PRODUCT,
    PRODUCT_AND_SUM,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
    QUICK_PRODUCT,
)
BATCHED_PRODUCT = torch.ops.aten.bmm.default
PAD = torch.ops.aten.constant_pad_nd.default
CHEAP = (torch.ops.aten.clone.default, torch.ops.aten.native_layer_norm.default, PAD)
RESHAPE = torch.ops.aten.reshape.default
VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
RESHAPES = (RESHAPE, *VIEWS, torch.ops.aten.expand.default)
TRANSPOSE = torch.ops.aten.transpose.int
TRANSPOSE_MATRIX = torch.ops.aten.t.default
CONCATENATE = torch.ops.aten.cat.default
SLICE = torch.ops.aten.slice.Tensor
AS_STRIDED = torch.ops.aten.as_strided.default


def has_dynamic_shape(node: fx.Node) -> bool:
    """Tell whether the shape of an operator's output depends on values of its inputs."""
    return torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())


def is_random(node: fx.Node) -> bool:
    """Tell whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def recorded_value(node: fx.Node) -> Tensor | None:
    """Return a tensor like that of a recorded operator, without values; None if it gave several."""
    value: Tensor | None = node.meta.get("tensor")
    if value is None and "like" in node.meta:
        shape, stride, dtype = node.meta["like"]
        value = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        node.meta["tensor"] = value
    return value


def describe_output(node: fx.Node) -> fx.Node:
    """Note what a new operator gives, a single tensor, from what is noted of its inputs."""
    if not callable(node.target):
        raise TypeError("Only operators have outputs.")
    args = fx.node.map_arg(node.args, recorded_value)
    node.meta["tensor"] = node.target(*args)
    return node


def recorded_dtype(node: fx.Node) -> torch.dtype | None:
    """Return the type of what a recorded operator gave; None if it is no single tensor."""
    value = recorded_value(node)
    return None if value is None else value.dtype


def is_view(node: fx.Node) -> bool:
    """Tell whether an operator's output shares the memory of its input."""
    if node.target in VIEWS or node.target is operator.getitem:
        return True  # one of several outputs is a part of what they share
    returned = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(one.alias_info is not None and not one.alias_info.is_write for one in returned)


def make_views_reshapes(graph: fx.Graph) -> None:
    """Let operators copy that change a shape, where memory has another order than before."""
    for node in graph.nodes:
        if node.target in VIEWS:
            node.target = RESHAPE


def list_written(graph: fx.Graph) -> list[fx.Node]:
    """List the values that operators of a graph write to."""
    written: list[fx.Node] = []
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        for number, one in enumerate(schema.arguments):
            if one.alias_info is not None and one.alias_info.is_write:
                by_place = number < len(node.args)
                held = node.args[number] if by_place else node.kwargs.get(one.name)
                values = held if isinstance(held, list | tuple) else [held]
                written += [value for value in values if isinstance(value, fx.Node)]
    return written


def find_owner(node: fx.Node) -> fx.Node:
    """Find the value whose memory another one lies in: itself, or what it is a view of."""
    while node.op == "call_function" and node.all_input_nodes:
        returned = getattr(getattr(node.target, "_schema", None), "returns", ())
        in_place = any(one.alias_info is not None for one in returned)
        if not in_place and not is_view(node):
            break
        node = node.all_input_nodes[0]
    return node


def is_cheap(node: fx.Node) -> bool:
    """Tell whether an operator does little with each element: it copies, normalises or maps it."""
    is_elementwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return is_elementwise or node.target in CHEAP
