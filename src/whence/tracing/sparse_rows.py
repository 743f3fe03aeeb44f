"""Rows of a tensor that is zero elsewhere, and how they pass operations that only move them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from whence._util import torch_internals as internals
from whence._util.torch_internals import output_metadata


class SparseRows(NamedTuple):
    """A tensor that is zero but for neighbouring rows.

    Attributes:
        rows: These rows, perhaps for several classes, which are then its first dimension.
        dim: The dimension of the rows, counted from the end.
        start: The first of them.
        shape: The shape of the whole tensor, without classes.
    """

    rows: Tensor
    dim: int
    start: int
    shape: torch.Size

    @property
    def range(self) -> tuple[int, int, int]:
        """Dimension, first row and number of rows, as `Tensor.narrow` takes them."""
        return self.dim, self.start, self.rows.shape[self.dim]

    def to_dense(self) -> Tensor:
        """The tensor with its zeros."""
        classes = self.rows.shape[: self.rows.dim() - len(self.shape)]
        dense = self.rows.new_zeros(*classes, *self.shape)
        dense.narrow(*self.range).copy_(self.rows)
        return dense


def _keep_rows(node: Node, value: SparseRows) -> SparseRows | None:
    """Rows of the one term that is no constant; in calls that were hidden there may be two."""
    terms = [(upstream, nr) for upstream, nr in node.next_functions if upstream is not None]
    scaled = node.next_functions[0][0] is None and internals.saved_alpha(node) != 1
    if len(terms) > 1 or scaled:
        return None
    [(upstream, nr)] = terms
    like = output_metadata(upstream)[nr]
    same = tuple(like.shape) == tuple(value.shape) and like.dtype == value.rows.dtype
    return value if same else None


def _transpose_rows(node: Node, value: SparseRows) -> SparseRows:
    dims = list(range(-len(value.shape), 0))
    a, b = (dim % len(dims) for dim in internals.saved_transposed_dims(node))
    dims[a], dims[b] = dims[b], dims[a]
    return _permute(dims, value)


def _permute_rows(node: Node, value: SparseRows) -> SparseRows:
    forward = [dim % len(value.shape) for dim in internals.saved_permutation(node)]
    return _permute([forward.index(dim) - len(forward) for dim in range(len(forward))], value)


def _permute(dims: list[int], value: SparseRows) -> SparseRows:
    """Rows of a tensor whose dimension i was dimension dims[i], counted from the end."""
    classes = range(value.rows.dim() - len(dims))
    return SparseRows(
        value.rows.permute(*classes, *dims),
        dims.index(value.dim) - len(dims),
        value.start,
        torch.Size(value.shape[dim] for dim in dims),
    )


def _reshape_rows(node: Node, value: SparseRows) -> SparseRows | None:
    """Rows in another shape, where some dimension of it counts the same rows."""
    shape = internals.saved_sizes(node)
    inner = value.shape[len(value.shape) + value.dim + 1 :].numel()
    for dim in range(-len(shape), 0):
        same = shape[dim] == value.shape[value.dim]
        if same and shape[len(shape) + dim + 1 :].numel() == inner:
            small = list(shape)
            small[dim] = value.rows.shape[value.dim]
            classes = value.rows.shape[: value.rows.dim() - len(value.shape)]
            return SparseRows(value.rows.reshape(*classes, *small), dim, value.start, shape)
    return None


MOVES: dict[str, Callable[[Node, SparseRows], SparseRows | None]] = {
    internals.ADD: _keep_rows,
    internals.CLONE: _keep_rows,
    internals.TRANSPOSE: _transpose_rows,
    internals.PERMUTE: _permute_rows,
    internals.VIEW: _reshape_rows,
    internals.UNSAFE_VIEW: _reshape_rows,
    internals.RESHAPE_ALIAS: _reshape_rows,
    internals.SLICE: _keep_rows,  # of everything: older releases of torch record it for `x[:, 0]`
}
