"""Attention in one kernel, as autograd's node: private parts of torch, as in `torch_internals`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from whence._util.torch_internals import output_metadata


def is_fused_attention(node: Node | None) -> bool:
    """Tell whether a node is that of an attention in one kernel, which keeps no maps."""
    return node is not None and node.name().startswith("ScaledDotProduct")


def run_attention_node(
    output: Tensor, inputs: Sequence[Tensor], gradient: Tensor
) -> tuple[Tensor, ...] | None:
    """Gradients by queries, keys and values that one kernel has made an output of.

    That is far quicker than autograd's engine.

    Returns:
        None if the graph is another, or gradients need more than the node.
    """
    node = output.grad_fn
    if node is None or not callable(node) or not is_fused_attention(node):
        return None
    edges = node.next_functions
    if len(edges) < len(inputs) or len(output_metadata(node)) != 1:
        return None
    for (upstream, _), leaf in zip(edges, inputs, strict=False):
        if getattr(upstream, "variable", None) is not leaf:
            return None
    with torch.no_grad():  # or the gradients would belong to a graph
        found: tuple[Tensor | None, ...] = node(gradient)
    fitting = [one for one in found if one is not None]
    fits = len(fitting) == len(inputs) and all(map(_has_shape_of, fitting, inputs))
    return tuple(fitting) if fits else None


def _has_shape_of(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape
