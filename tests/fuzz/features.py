"""Further operations of random models, each over the features of a token.

Without a tape, each is a torch call. Under one, it is what the call means: a matrix of weights that
is read from unit vectors, or numbers that are moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.fuzz import ops

_GENERATOR = torch.Generator().manual_seed(23)
_KERNEL = torch.randn(1, 1, 3, generator=_GENERATOR, dtype=torch.float64)
_MATRICES = torch.randn(2, 64, 64, generator=_GENERATOR, dtype=torch.float64)


def _scatter(x: Tensor) -> Tensor:
    index = (torch.arange(x.shape[-1]) % (x.shape[-1] // 2)).expand_as(x)
    return x.new_zeros(*x.shape[:-1], x.shape[-1] // 2).scatter_add(-1, index, x)


def _spread(x: Tensor) -> Tensor:
    rows = x.reshape(-1, 1, x.shape[-1])
    return F.conv_transpose1d(rows, _KERNEL, stride=2, padding=1).view(*x.shape[:-1], -1)


def _sample(x: Tensor) -> Tensor:
    """Features at places between them, as of an image of one row."""
    places = torch.linspace(-0.93, 0.91, x.shape[-1] + 2, dtype=x.dtype)
    grid = torch.stack([places, torch.zeros_like(places)], -1).expand(len(x), 1, -1, -1)
    return F.grid_sample(x[:, :, None], grid, align_corners=False)[:, :, 0]


def _multiply_twice(x: Tensor) -> Tensor:
    a, b = (m[: x.shape[-1], : x.shape[-1]] for m in _MATRICES)
    return torch.einsum("abi,ij,jk->abk", x, a, b)


SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "resized": lambda x: F.interpolate(x, scale_factor=1.6, mode="linear"),
    "repeated": lambda x: F.interpolate(x, size=x.shape[-1] + 3),
    "averaged": lambda x: F.avg_pool1d(x, 3, 2, 1),
    "running": lambda x: x.cumsum(-1),
    "scattered": _scatter,
    "sampled": _sample,
}
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "greatest": lambda x: F.max_pool1d(x, 2),
    "rolled": lambda x: x.roll(2, -1),
    "windows": lambda x: x.unfold(-1, 3, 2).flatten(2),
    "highest": lambda x: torch.zeros_like(x).scatter(-1, *reversed(x.topk(4))),
}
FEATURES = (*SUMS, *MOVES, "spread", "twice")


def apply(x: Tensor, name: str | None) -> Tensor:
    """Apply one of these operations to (batch, tokens, width)."""
    if name is None:
        return x
    tape = ops.current()
    if name in MOVES:  # autograd routes all rules alike
        return MOVES[name](x)
    if name == "twice":
        if tape is None:
            return _multiply_twice(x)
        for matrix in _MATRICES:
            x = tape.rules.linear(x, matrix[: x.shape[-1], : x.shape[-1]].mT, None)
        return x
    call = _spread if name == "spread" else SUMS[name]
    if tape is None:
        return call(x)
    units = torch.eye(x.shape[-1], dtype=x.dtype)
    weights = call(units[None])[0]  # (width, new width)
    if name == "spread":
        return tape.rules.linear(x, weights.mT, None)
    return tape.rules.weigh(x, weights)


def find_width(name: str | None, width: int) -> int:
    return apply(torch.zeros(1, 1, width, dtype=torch.float64), name).shape[-1]


# Activations as models spell them -----------------------------------------------------------------

BY_HAND: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "silu": lambda x: torch.sigmoid(x) * x,
    "relu": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
}


def activate(x: Tensor, name: str, by_hand: bool) -> Tensor:
    if by_hand and ops.current() is None and name in BY_HAND:
        return BY_HAND[name](x)
    return ops.function(x, name)
