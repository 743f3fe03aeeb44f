"""Graphs of torch's operators: private and undocumented parts of torch, as in `torch_internals`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx


def trace_to_graph(
    function: Callable[..., object], inputs: Sequence[Tensor], *, fake: bool = False
) -> fx.GraphModule:
    """Run a function and record its operators, those of autograd's backward too.

    Args:
        function: Takes tensors; returns a list of tensors.
        inputs: Its arguments.
        fake: Whether to run it on tensors without values.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # half a second to import

    trace = make_fx(function, tracing_mode="fake" if fake else "real")
    graph: fx.GraphModule = trace(*inputs)
    return graph


def compile_graph(
    graph: fx.GraphModule, inputs: Sequence[Tensor]
) -> Callable[..., Sequence[Tensor]]:
    """Compile a graph of operators for inputs of these shapes by torch's inductor."""
    import torch._inductor

    compiled: Callable[..., Sequence[Tensor]] = torch._inductor.compile(graph, list(inputs))
    return compiled


# Operators of a graph, as the targets of its nodes.
IDENTITIES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
INDEX = torch.ops.aten.index.Tensor
PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
)
RESHAPE = torch.ops.aten.reshape.default
VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def has_dynamic_shape(node: fx.Node) -> bool:
    """Tell whether the shape of an operator's output depends on values of its inputs."""
    return torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())


def recorded_value(node: fx.Node) -> Tensor | None:
    """Return the tensor that a recorded operator gave, without values if it ran on fake tensors."""
    value = node.meta.get("val")
    return value if isinstance(value, Tensor) else None


def recorded_dtype(node: fx.Node) -> torch.dtype | None:
    """Return the type of what a recorded operator gave; None if it is no single tensor."""
    metadata = node.meta.get("tensor_meta")
    return None if metadata is None else metadata.dtype
