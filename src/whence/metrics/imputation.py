"""Impute missing pixels from their neighbours by noisy linear interpolation, in batches.

After ROAD (Rong et al., ICML 2022): masks that are filled so tell the model little of their shape.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from whence._util.random import SeededRandom
from whence.errors import WhenceError

NOISE = 0.01
"""Standard deviation of the noise on imputed pixels, which are between 0 and 1."""
TOLERANCE = 4e-4
"""How far imputed pixels may be from the solution, about: a tenth of a step of 8 bits."""

# Weights of neighbours by rows and columns, in both directions, times 12: sums of whole numbers
# are exact in single precision, and a sum that is off by rounding would pull all pixels to 0.
_WEIGHTS = {(0, 1): 2, (1, 0): 2, (1, 1): 1, (1, -1): 1}
# Jacobi's damping, and how much corrections of a coarse grid of constant cells fall short.
_DAMPING, _CORRECTION = 0.8, 1.8
_MAX_ROUNDS = 100
_ON_A_CPU = 4


def impute_pixels(pixels: Tensor, hidden: Tensor, noise: Tensor | None = None) -> Tensor:
    r"""Replace hidden pixels by means of their neighbours, and add noise to them.

    Each hidden pixel is the weighted mean of its eight neighbours inside of the image, hidden ones
    too, with weights 1/6 beside and 1/12 across corners: a sparse system of linear equations, which
    conjugate gradients solve to about `TOLERANCE`, preconditioned by multigrid. If all pixels
    are hidden, nothing can be interpolated, and they become the image's mean colour.

    Args:
        pixels: (n, channels, height, width).
        hidden: (n, height, width), true where hidden.
        noise: Of a standard normal distribution, of the shape of `pixels`; none if left out.
    """
    if pixels.dim() != 4 or hidden.shape != (len(pixels), *pixels.shape[2:]):
        raise WhenceError(
            f"Pixels (n, channels, height, width) and hidden (n, height, width) have to fit "
            f"together, not {tuple(pixels.shape)} and {tuple(hidden.shape)}."
        )
    everywhere = hidden.flatten(1).all(1)
    missing = (hidden & ~everywhere[:, None, None])[:, None].to(pixels)
    # A few images at a time stay in the caches of a CPU.
    size = _ON_A_CPU if pixels.device.type == "cpu" else max(1, len(pixels))
    parts = [
        (pixels[at : at + size], missing[at : at + size]) for at in range(0, len(pixels), size)
    ]
    solved = torch.cat([_solve(*part) for part in parts]) if parts else pixels
    means = pixels.double().mean((2, 3), keepdim=True).to(pixels)
    solved = torch.where(everywhere[:, None, None, None], means, solved)
    if noise is not None:
        solved = solved + NOISE * noise.to(pixels)
    return torch.where(hidden[:, None], solved, pixels)


def draw_noise(names: Sequence[str], shape: Sequence[int]) -> Tensor:
    """Draw noise for images by their names, (names, *shape): the same in every batch.

    The last result is kept, for other methods on the same batch: do not change it.
    """
    return _draw_noise(tuple(names), tuple(shape))


@functools.lru_cache(maxsize=1)
def _draw_noise(names: tuple[str, ...], shape: tuple[int, ...]) -> Tensor:
    drawn = [SeededRandom(_hash(name)).draw_normal(*shape) for name in names]
    return torch.stack(drawn) if drawn else torch.empty(0, *shape)


def _hash(name: str) -> int:
    """A seed that is the same in every process."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:6], "big")


def _solve(pixels: Tensor, missing: Tensor) -> Tensor:
    """Solve for the missing pixels by preconditioned conjugate gradients; 0 elsewhere."""
    known = 1 - missing
    residual = missing * _sum_neighbours(known * pixels)
    grids = _build_grids(missing, missing * _sum_neighbours(known))
    values = torch.zeros_like(pixels)
    step, product = torch.zeros_like(pixels), torch.ones_like(pixels[:, :, :1, :1])
    for _ in range(_MAX_ROUNDS):
        corrected = _precondition(grids, residual)
        # The correction is about the error that is left, so each image ends by its own.
        active = corrected.abs().amax((1, 2, 3), keepdim=True) > TOLERANCE
        if not active.any():
            break
        before, product = product, (residual * corrected).sum((2, 3), keepdim=True)
        step = torch.addcmul(corrected, _divide(product, before), step)
        applied = _apply(grids[0], step)
        length = active * _divide(product, (step * applied).sum((2, 3), keepdim=True))
        values.addcmul_(length, step)
        residual.addcmul_(length, applied, value=-1)
    return values


class _Grid(NamedTuple):
    """Equations of a grid: all are (n, 1, height, width), with zeros where nothing is hidden.

    Attributes:
        weights: Between cells, one for each of `_WEIGHTS`.
        sums: The sum of each cell's weights, those to known pixels too.
        inverse: One over these.
        is_hidden: 1 where a cell has an equation.
    """

    weights: list[Tensor]
    sums: Tensor
    inverse: Tensor
    is_hidden: Tensor


def _build_grids(missing: Tensor, known: Tensor) -> list[_Grid]:
    """The grid of pixels, and coarser ones whose cells are two by two of the one before.

    `known` are the weights between each missing pixel and known ones.
    """
    weights = []
    for (rows, columns), weight in _WEIGHTS.items():
        between = torch.zeros_like(missing)
        first, second = _slide(missing, rows, columns)
        _slide(between, rows, columns)[0].copy_(weight * first * second)
        weights.append(between)
    grids = [_make_grid(weights, known)]
    while max(known.shape[2:]) > 1:
        weights, known = _coarsen(weights, known)
        grids.append(_make_grid(weights, known))
    return grids


def _make_grid(weights: list[Tensor], known: Tensor) -> _Grid:
    sums = known.clone()
    for between, offset in zip(weights, _WEIGHTS, strict=True):
        one, other = _slide(sums, *offset)
        one += _slide(between, *offset)[0]
        other += _slide(between, *offset)[0]
    return _Grid(weights, sums, torch.where(sums > 0, 1 / sums, 0.0), (sums > 0).to(sums))


def _coarsen(weights: Sequence[Tensor], known: Tensor) -> tuple[list[Tensor], Tensor]:
    """Sum the weights that cross the borders of cells of two by two."""
    right, down, across, back = (_pad_to_even(one) for one in weights)
    first, second = slice(0, None, 2), slice(1, None, 2)
    to_the_left = F.pad(back[..., first, first], (0, 1))[..., 1:]
    beside = right[..., first, second] + right[..., second, second] + across[..., first, second]
    below = down[..., second, first] + down[..., second, second] + across[..., second, first]
    coarse = [
        beside + to_the_left,
        below + back[..., second, second],
        across[..., second, second].contiguous(),
        back[..., second, first].contiguous(),
    ]
    return coarse, _sum_cells(known)


def _precondition(grids: Sequence[_Grid], residual: Tensor) -> Tensor:
    """Nearly solve the equations: smooth, correct by the coarser grids, smooth again."""
    grid = grids[0]
    if len(grids) == 1:
        return grid.inverse * residual
    height, width = residual.shape[2:]
    values = (grid.inverse * residual).mul_(_DAMPING)
    coarse = _precondition(grids[1:], _sum_cells(residual - _apply(grid, values)))
    spread = F.interpolate(coarse, scale_factor=2.0, mode="nearest")[..., :height, :width]
    values.addcmul_(grid.is_hidden, spread, value=_CORRECTION)
    return values.addcmul_(grid.inverse, residual - _apply(grid, values), value=_DAMPING)


def _apply(grid: _Grid, values: Tensor) -> Tensor:
    """The left side of the equations: a cell times the sum of its weights, less its neighbours."""
    out = grid.sums * values
    for between, offset in zip(grid.weights, _WEIGHTS, strict=True):
        weight = _slide(between, *offset)[0]
        (one, other), (out_one, out_other) = _slide(values, *offset), _slide(out, *offset)
        out_one.addcmul_(weight, other, value=-1)
        out_other.addcmul_(weight, one, value=-1)
    return out


def _sum_neighbours(values: Tensor) -> Tensor:
    """The weighted sum of each pixel's neighbours inside of the image."""
    out = torch.zeros_like(values)
    for offset, weight in _WEIGHTS.items():
        (one, other), (out_one, out_other) = _slide(values, *offset), _slide(out, *offset)
        out_one.add_(other, alpha=weight)
        out_other.add_(one, alpha=weight)
    return out


def _slide(values: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Views of all cells that have another so many rows and columns on, and of these."""
    height, width = values.shape[2:]
    left, right = max(0, -columns), max(0, columns)
    ones = values[..., : height - rows, left : width - right]
    return ones, values[..., rows:, right : width - left]


def _sum_cells(values: Tensor) -> Tensor:
    """Sum over cells of two by two."""
    return F.avg_pool2d(_pad_to_even(values), 2, divisor_override=1)


def _pad_to_even(values: Tensor) -> Tensor:
    return F.pad(values, (0, values.shape[3] % 2, 0, values.shape[2] % 2))


def _divide(above: Tensor, below: Tensor) -> Tensor:
    """Divide, with 0 where the divisor is 0."""
    return torch.where(below > 0, above / below, 0.0)
