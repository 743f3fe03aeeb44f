"""Impute missing pixels from their neighbours by noisy linear interpolation, in batches.

After ROAD (Rong et al., ICML 2022): masks that are filled so tell the model little of their shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from whence._util.random import SeededRandom, make_seed
from whence.errors import WhenceError

NOISE = 0.01
"""Standard deviation of the noise on imputed pixels, which are between 0 and 1."""
TOLERANCE = 4e-4
"""How far imputed pixels may be from the solution, about: a tenth of a step of 8 bits."""

# Weights of neighbours by rows and columns, in both directions, times 12: sums of whole numbers
# are exact in single precision, and a sum that is off by rounding would pull all pixels to 0.
_WEIGHTS = {(0, 1): 2, (1, 0): 2, (1, 1): 1, (1, -1): 1}
_AROUND = [(sign * rows, sign * columns) for rows, columns in _WEIGHTS for sign in (1, -1)]
# Jacobi's damping, and how much corrections of a coarse grid of constant cells fall short.
_DAMPING, _CORRECTION = 0.8, 1.8
_MAX_ROUNDS = 100
_ON_A_CPU = 4
_COARSEST = 7


def impute_pixels(pixels: Tensor, hidden: Tensor, noise: Tensor | None = None) -> Tensor:
    """Replace hidden pixels by means of their neighbours, and add noise to them.

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
    drawn = [SeededRandom(make_seed(name)).draw_normal(*shape) for name in names]
    return torch.stack(drawn) if drawn else torch.empty(0, *shape)


def _solve(pixels: Tensor, missing: Tensor) -> Tensor:
    """Solve for the missing pixels by preconditioned conjugate gradients; 0 elsewhere."""
    known = 1 - missing
    residual = missing * _sum_neighbours(known * pixels)
    to_known = missing * _sum_neighbours(known)
    sums = to_known + missing * _sum_neighbours(missing)
    inverse = torch.where(sums > 0, 1 / sums, 0.0)
    grids = _build_grids(missing, to_known)

    def apply(values: Tensor) -> Tensor:
        """The left side of the equations of pixels, whose weights are the same everywhere."""
        return torch.addcmul(sums * values, missing, _sum_neighbours(values), value=-1)

    values = torch.zeros_like(pixels)
    step, product = torch.zeros_like(pixels), torch.ones_like(pixels[:, :, :1, :1])
    for _ in range(_MAX_ROUNDS):
        corrected = _smooth(residual, apply, inverse, missing, grids)
        # The correction is about the error that is left, so each image ends by its own.
        active = corrected.abs().amax((1, 2, 3), keepdim=True) > TOLERANCE
        if not active.any():
            break
        before, product = product, (residual * corrected).sum((2, 3), keepdim=True)
        step = torch.addcmul(corrected, _divide(product, before), step)
        applied = apply(step)
        length = active * _divide(product, (step * applied).sum((2, 3), keepdim=True))
        values.addcmul_(length, step)
        residual.addcmul_(length, applied, value=-1)
    else:
        raise WhenceError(f"Pixels were not interpolated to {TOLERANCE:g} in {_MAX_ROUNDS} rounds.")
    return values


class _Grid(NamedTuple):
    """Equations of a grid that is coarser than pixels.

    Attributes:
        stencil: (9, n, 1, height, width): what a cell is times, and those `_AROUND` it.
        inverse: (n, 1, height, width): one over what it is times, 0 where nothing is hidden.
        is_hidden: The same shape: 1 where something is hidden.
        solution: (n, cells, cells): of the coarsest grid, what solves its equations.
    """

    stencil: Tensor
    inverse: Tensor
    is_hidden: Tensor
    solution: Tensor | None = None


def _build_grids(missing: Tensor, known: Tensor) -> list[_Grid]:
    """Grids whose cells are two by two of the one before, down to one of few cells.

    `known` are the weights between each missing pixel and known ones.
    """
    weights = []
    for (rows, columns), weight in _WEIGHTS.items():
        between = torch.zeros_like(missing)
        one, other = _slide(missing, rows, columns)
        _slide(between, rows, columns)[0].copy_(weight * one * other)
        weights.append(between)
    grids: list[_Grid] = []
    while not grids or max(known.shape[2:]) > _COARSEST:
        weights, known = _coarsen(weights, known)
        grids.append(_make_grid(weights, known))
    grids[-1] = grids[-1]._replace(solution=_invert(grids[-1]))
    return grids


def _make_grid(weights: Sequence[Tensor], known: Tensor) -> _Grid:
    stencil = known.new_zeros(1 + len(_AROUND), *known.shape)
    sums = stencil[0].add_(known)
    for number, between in enumerate(weights):
        rows, columns = _AROUND[2 * number]
        weight = _slide(between, rows, columns)[0]
        for at in (0, 1):
            _slide(sums, rows, columns)[at].add_(weight)
            _slide(stencil[1 + 2 * number + at], rows, columns)[at].sub_(weight)
    return _Grid(stencil, torch.where(sums > 0, 1 / sums, 0.0), (sums > 0).to(sums))


def _invert(grid: _Grid) -> Tensor:
    """Invert the equations of a grid of few cells; those without an equation are left alone."""
    height, width = grid.inverse.shape[2:]
    cells = torch.eye(height * width).to(grid.inverse).reshape(1, -1, height, width)
    columns = _apply(grid, cells.expand(len(grid.inverse), -1, -1, -1)).flatten(2)
    # A cell without an equation, and what is hidden without any known pixel around, stay at 0.
    columns = columns + torch.diag_embed(1 - grid.is_hidden.flatten(1))
    inverse: Tensor = torch.linalg.inv_ex(columns).inverse
    return inverse * grid.is_hidden.flatten(1)[:, None]


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


def _smooth(
    residual: Tensor,
    apply: Callable[[Tensor], Tensor],
    inverse: Tensor,
    is_hidden: Tensor,
    coarser: Sequence[_Grid],
) -> Tensor:
    """Nearly solve the equations: smooth, correct by the coarser grids, smooth again."""
    height, width = residual.shape[2:]
    values = (inverse * residual).mul_(_DAMPING)
    coarse = _precondition(coarser, _sum_cells(residual - apply(values)))
    spread = F.interpolate(coarse, scale_factor=2.0, mode="nearest")[..., :height, :width]
    values.addcmul_(is_hidden, spread, value=_CORRECTION)
    return values.addcmul_(inverse, residual - apply(values), value=_DAMPING)


def _precondition(grids: Sequence[_Grid], residual: Tensor) -> Tensor:
    """Nearly solve the equations of the first of these grids."""
    grid = grids[0]
    if grid.solution is not None:
        return (residual.flatten(2) @ grid.solution).reshape(residual.shape)

    def apply(values: Tensor) -> Tensor:
        return _apply(grid, values)

    return _smooth(residual, apply, grid.inverse, grid.is_hidden, grids[1:])


def _apply(grid: _Grid, values: Tensor) -> Tensor:
    """The left side of the equations of a coarse grid."""
    height, width = values.shape[2:]
    padded = F.pad(values, (1, 1, 1, 1))
    out = grid.stencil[0] * values
    for weight, (down, right) in zip(grid.stencil[1:], _AROUND, strict=True):
        at = padded[..., 1 + down : 1 + down + height, 1 + right : 1 + right + width]
        out.addcmul_(weight, at)
    return out


def _sum_neighbours(values: Tensor) -> Tensor:
    """The weighted sum of each pixel's neighbours inside of the image."""
    # The weights are those of (1, 2, 1) down times (1, 2, 1) to the right, without the middle.
    padded = F.pad(values, (1, 1, 1, 1))
    beside = padded[..., :-2, :] + padded[..., 2:, :]
    whole = torch.add(beside, padded[..., 1:-1, :], alpha=2)
    return (whole[..., :-2] + whole[..., 2:]).add_(beside[..., 1:-1], alpha=2)


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
    height, width = values.shape[2:]
    return F.pad(values, (0, width % 2, 0, height % 2)) if height % 2 or width % 2 else values


def _divide(above: Tensor, below: Tensor) -> Tensor:
    """Divide, with 0 where the divisor is 0."""
    return torch.where(below > 0, above / below, 0.0)
