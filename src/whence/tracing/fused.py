"""Element-wise steps of the rules as one kernel each, where torch can compile them.

On a GPU these steps are bound by memory: each reads and writes whole tensors. Compiled, a chain of
them reads its inputs once and writes its result once. The functions below say what is computed;
`compiled` gives a faster one of the same result, or the function itself where there is no compiler.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def positive_shares(
    relevance: Tensor, product: Tensor, output: Tensor, moved: float, margin: float
) -> tuple[Tensor, Tensor]:
    """Relevance in shares of a sum of positive products, and the sum less a margin, by row."""
    total = product + 0.5 * output
    return relevance / (total + moved), (total - margin * output.abs()).amin(-1)


def of_weight(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The positive part of a weight, its negative part, and half of its absolute value."""
    return weight.clamp(min=0), weight.clamp(max=0), 0.5 * weight.abs()


def by_sign(positive: Tensor, negative: Tensor, x: Tensor) -> Tensor:
    """One tensor where x is positive, another where it is not, times x."""
    return torch.where(x > 0, positive, negative) * x


def absolute_shares(relevance: Tensor, a: Tensor, b: Tensor, moved: float) -> tuple[Tensor, Tensor]:
    """Relevance in shares of the absolute values of two terms."""
    part = a.abs()
    to_a = relevance * (part / (part + b.abs() + moved))
    return to_a, relevance - to_a


def divided(relevance: Tensor, total: Tensor, moved: float) -> Tensor:
    """Relevance divided by a non-negative sum that is moved away from zero."""
    return relevance / (total + moved)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors of one shape that is compiled when first called; itself if that fails.

    Numbers of other types may follow the tensors.
    """
    # Sizes differ from layer to layer, and one kernel serves them all.
    fast = torch.compile(function, dynamic=True, fullgraph=True)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        nonlocal fast
        shape = args[0].shape
        # Kernels are made for a number of dimensions and an order in memory.
        flat = [_rows(x) if isinstance(x, Tensor) else x for x in args]
        if flat[0].shape[0] == 1:  # that would be another kernel, for next to nothing
            return function(*args)
        try:
            found = fast(*flat)
        except Exception as error:  # compilers fail in ways of their own
            if fast is function:
                raise
            fast = function
            reason = str(error).strip().split("\n")[0]
            warnings.warn(
                f"torch cannot compile `{function.__name__}` here, so it runs uncompiled, with the "
                f"same results: {reason}",
                stacklevel=2,
            )
            found = function(*flat)
        if isinstance(found, tuple):
            return tuple(one.reshape(shape) if one.dim() == 2 else one for one in found)
        return found.reshape(shape)

    return call
