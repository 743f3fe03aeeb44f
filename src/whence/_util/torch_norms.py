"""Norms as autograd's nodes tell them: private parts of torch, as in `torch_internals`.

A norm that a model spells by hand, ``weight * (x * torch.rsqrt(x.pow(2).mean(-1) + eps))``, leaves
a node for each call. They prove that it is x times factors, of which one is a spread of x.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from whence._util.torch_internals import ADD, TO_COPY, output_metadata, saved_reduced_dims

_MUL = "MulBackward0"
_DIV = "DivBackward0"
_RSQRT = "RsqrtBackward0"
_SQRT = "SqrtBackward0"
_POW = "PowBackward0"
_MEAN = "MeanBackward1"
_ADDS = (ADD, "AddBackward1")

# The exponent of a power, and of what it is one.
_saved_exponent: Callable[[Node], float] = attrgetter("_saved_exponent")
_saved_self: Callable[[Node], Tensor] = attrgetter("_saved_self")
# Whether a mean keeps its dimensions.
_saved_keepdim: Callable[[Node], bool] = attrgetter("_saved_keepdim")
# The first and the second factor of a product, or the second of a quotient.
_SAVED: tuple[Callable[[Node], Tensor], ...] = _saved_self, attrgetter("_saved_other")
_ROOTS = (0.5, -0.5)
# So many nodes a norm may consist of.
_LONGEST = 24


class NormStep(NamedTuple):
    """One step of a norm, as a gradient passes it backward.

    Attributes:
        dtype: The type of what the step reads.
        factor: What it multiplies with; None for the spread, or if it only changes the type.
        divides: Whether it divides by that instead.
        is_spread: Whether it multiplies with the spread.
    """

    dtype: torch.dtype
    factor: Tensor | None = None
    divides: bool = False
    is_spread: bool = False


class NormNodes(NamedTuple):
    """A norm, y = x · factors · spread.

    Attributes:
        steps: Its steps, the last first.
        mean_dims: The dimensions of the mean if the spread is 1 / sqrt(mean(x²) + eps), one number
            for each row, and only the type of x was changed before; empty if that is not known.
    """

    steps: tuple[NormStep, ...]
    mean_dims: tuple[int, ...]


def read_norm(output: Tensor, leaf: Tensor) -> tuple[NormNodes, Tensor] | None:
    """Read a norm, and its spread, off the nodes that made an output of a leaf.

    Returns:
        None if there is anything but products with constants and with one spread between them, or
        if shapes change.
    """
    if output.shape != leaf.shape:
        return None  # else no product in between has another shape either: they only grow
    node, steps = output.grad_fn, list[NormStep]()
    spread: Tensor | None = None
    mean_dims: tuple[int, ...] = ()
    while node is not None and len(steps) < _LONGEST:
        name, edges = node.name(), node.next_functions
        side, factor, is_spread = 1, None, False
        if name in (_MUL, _DIV):
            side, is_spread = _find_side(name, edges, leaf)
            if side < 0 or (is_spread and spread is not None):
                return None
            factor = _SAVED[side](node).detach()
            mean_dims = ()  # of what was multiplied before
            if is_spread:
                spread, factor = factor, None
                mean_dims = () if name == _DIV else _find_mean(edges[side][0], edges[1 - side][0])
        elif name != TO_COPY:
            return None
        node, number = edges[1 - side]
        if node is None:
            return None
        is_end = getattr(node, "variable", None) is leaf
        dtype = leaf.dtype if is_end else output_metadata(node)[number].dtype
        steps.append(NormStep(dtype, factor, name == _DIV, is_spread))
        if is_end:
            if spread is None:
                return None
            # One number for each row: what is added to the mean may be one for each element.
            by_row = spread.dim() == leaf.dim() and all(spread.shape[d] == 1 for d in mean_dims)
            return NormNodes(tuple(steps), mean_dims if by_row else ()), spread
    return None


_Edges = tuple[tuple[Node | None, int], ...]


def _find_side(name: str, edges: _Edges, leaf: Tensor) -> tuple[int, bool]:
    """Which factor is a constant or a spread, -1 if none is; and whether it is a spread."""
    numbers = (1,) if name == _DIV else (1, 0)
    for number in numbers:
        if _is_other_leaf(edges[number][0], leaf):
            return number, False
    for number in numbers:
        if _is_spread(edges[number][0]):
            return number, True
    for number in numbers:
        if not _leads_to(edges[number][0], leaf):
            return number, False
    return -1, False


def _is_other_leaf(node: Node | None, leaf: Tensor) -> bool:
    return node is None or getattr(node, "variable", leaf) is not leaf


def _is_spread(node: Node | None) -> bool:
    """Whether a node, but for changes of type, is that of a root."""
    while node is not None:
        name = node.name()
        if name != TO_COPY:
            return name in (_RSQRT, _SQRT) or (name == _POW and _saved_exponent(node) in _ROOTS)
        node = node.next_functions[0][0]
    return False


def _leads_to(node: Node | None, leaf: Tensor) -> bool:
    waiting, seen = [node], 0
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        seen += 1
        if seen > _LONGEST or getattr(node, "variable", None) is leaf:
            return True
        waiting += [upstream for upstream, _ in node.next_functions]
    return False


def _find_mean(spread: Node | None, x: Node | None) -> tuple[int, ...]:
    """The dimensions of the mean if a spread is 1 / sqrt(mean(x²) + eps); empty if it is not."""
    name = "" if spread is None else spread.name()
    if spread is None or not (name == _RSQRT or (name == _POW and _saved_exponent(spread) == -0.5)):
        return ()
    node = spread.next_functions[0][0]
    if node is not None and node.name() in _ADDS:
        (node, _), *others = node.next_functions
        if any(upstream is not None for upstream, _ in others):
            return ()
    if node is None or node.name() != _MEAN or not _saved_keepdim(node):
        return ()
    square = node.next_functions[0][0]
    if square is None or square.name() != _POW or _saved_exponent(square) != 2:
        return ()
    if square.next_functions[0][0] is not x or _saved_self(square).dim() < 1:
        return ()
    rank = _saved_self(square).dim()
    return tuple(sorted(dim % rank - rank for dim in saved_reduced_dims(node)))
