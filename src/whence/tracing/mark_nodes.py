"""How marks pass autograd's own nodes that choose by values: maxima, medians, pooling.

Autograd would mark the one element that was chosen; but each of those that it was chosen from may
be, so all are marked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from whence._util import torch_internals as internals
from whence._util.torch_internals import output_metadata
from whence.tracing.mark_windows import mark_adaptive, mark_pooled
from whence.tracing.marks import sum_marks, to_marks

Marks = Mapping[int, Tensor]
NodeMarks = Callable[[Node, Marks], "list[Tensor | None]"]


def pass_node(node: Node, values: Marks) -> list[Tensor | None] | None:
    """Marks of the inputs of a node, given those of its outputs; None if autograd knows them.

    Args:
        node: A node that is no recorded operation.
        values: Marks by the number of the output; those of numbers, not of indices.
    """
    rule = _BY_NAME.get(node.name())
    return None if rule is None else rule(node, values)


def _input_shape(node: Node, number: int = 0) -> torch.Size:
    upstream, nr = node.next_functions[number]
    if upstream is None:
        raise ValueError("What does not depend on the input has no marks.")
    return torch.Size(output_metadata(upstream)[nr].shape)


def _mark_pool(node: Node, values: Marks) -> list[Tensor | None]:
    shape, windows = _input_shape(node), internals.saved_windows(node)
    return [mark_pooled(to_marks(values[0]), shape, windows)]


def _mark_adaptive_pool(node: Node, values: Marks) -> list[Tensor | None]:
    dims = 2 if "2D" in node.name() else 3
    return [mark_adaptive(to_marks(values[0]), _input_shape(node), dims)]


def _mark_along(node: Node, values: Marks) -> list[Tensor | None]:
    """Marks of all elements along the dimensions that were reduced."""
    shape = _input_shape(node)
    total: Tensor | None = None
    for marks in values.values():
        marks = to_marks(marks)
        if marks.dim() - 1 < len(shape):  # the dimensions are gone
            marks = marks.reshape(len(marks), *_keep_dims(node, shape))
        total = marks if total is None else total + marks
    return [None if total is None else total.expand(len(total), *shape)]


def _keep_dims(node: Node, shape: torch.Size) -> list[int]:
    """The shape of a reduced tensor with a length of 1 along the dimensions that are gone."""
    dims = [dim % len(shape) for dim in internals.saved_reduced_dims(node)]
    return [1 if dim in dims or not dims else size for dim, size in enumerate(shape)]


def _mark_running(node: Node, values: Marks) -> list[Tensor | None]:
    """Marks of all elements up to each."""
    shape = _input_shape(node)
    dim = internals.saved_dim(node) % len(shape) + 1
    return [to_marks(values[0]).flip(dim).cumsum(dim).flip(dim)]


def _mark_both(node: Node, values: Marks) -> list[Tensor | None]:
    """Marks of the same element in both tensors."""
    marks = to_marks(values[0])
    shapes: Sequence[torch.Size | None] = [
        None if upstream is None else torch.Size(output_metadata(upstream)[nr].shape)
        for upstream, nr in node.next_functions
    ]
    return [None if shape is None else sum_marks(marks, shape) for shape in shapes]


_WORDS: dict[NodeMarks, str] = {
    _mark_adaptive_pool: "AdaptiveMaxPool2D AdaptiveMaxPool3D",
    _mark_along: "Max Min Amax Amin Aminmax Median Nanmedian Kthvalue Mode Logsumexp",
    _mark_running: "Cummax Cummin",
    _mark_both: "Maximum Minimum Fmax Fmin Logaddexp",
}
_BY_NAME: dict[str, NodeMarks] = {
    **dict.fromkeys(internals.MAX_POOLS, _mark_pool),
    **{
        f"{word}Backward{n}": r
        for r, words in _WORDS.items()
        for word in words.split()
        for n in "01"
    },
}
