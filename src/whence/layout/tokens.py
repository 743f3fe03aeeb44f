"""What the tokens of a model are: prefix tokens and patches on a grid, or those of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from whence.errors import WhenceError

# Without a convolution to tell, this many tokens before the patches are believed.
_LIKELY_PREFIX = 8


@dataclass(frozen=True)
class Layout:
    """Where tokens stand. Give it to `Explainer` to say what cannot be found from the model.

    Attributes:
        grid: Rows and columns of patches, in reading order; None: found, or no image.
        prefix: Tokens before the first patch (class, distillation, registers); None: found.
        pooled: Positions of the tokens that the classifier reads; None: found from gradients.
    """

    grid: tuple[int, int] | None = None
    prefix: int | None = None
    pooled: tuple[int, ...] | None = None


def find_layout(
    given: Layout, tokens: int, main: Tensor, grids: Sequence[tuple[int, ...]]
) -> Layout:
    """Complete a layout from a forward pass.

    Args:
        given: What the user said.
        tokens: Number of tokens that the first attention reads.
        main: The model's input.
        grids: Spatial sizes of convolution outputs; patches are mostly made by one.

    Raises:
        WhenceError: What was given does not fit, or an image's grid cannot be found.
    """
    pooled = given.pooled
    if pooled is not None and not (pooled and all(0 <= p < tokens for p in pooled)):
        raise WhenceError(
            f"Layout(pooled={pooled}) does not fit: name some of the tokens 0 to {tokens - 1}."
        )
    if given.grid is not None:
        return Layout(given.grid, _prefix(given, given.grid, tokens), pooled)
    is_image = main.is_floating_point() and main.dim() == 4
    made = [grid for grid in grids if len(grid) == 2] if main.is_floating_point() else []
    fitting = [(r, c) for r, c in made if r * c <= tokens]
    if is_image and not made:
        # Patches were not made by a convolution; mostly they are squares that do not overlap.
        squares = _grids_of_square_patches(main.shape[-2], main.shape[-1])
        fitting = [(r, c) for r, c in squares if 0 <= tokens - r * c <= _LIKELY_PREFIX]
        fitting = fitting if len(fitting) == 1 or given.prefix is not None else []
    if given.prefix is not None:
        fitting = [(r, c) for r, c in fitting if r * c + given.prefix == tokens]
    if fitting:
        grid = max(fitting, key=lambda shape: shape[0] * shape[1])
        return Layout(grid, _prefix(given, grid, tokens), pooled)
    if is_image:
        raise WhenceError(
            f"whence cannot tell how {tokens} tokens lie on an image of "
            f"{main.shape[-2]}x{main.shape[-1]} pixels. Say so: "
            f"Explainer(model, layout=Layout(grid=(rows, columns), prefix=1))."
        )
    return Layout(None, given.prefix or 0, pooled)


def _prefix(given: Layout, grid: tuple[int, int], tokens: int) -> int:
    prefix = tokens - grid[0] * grid[1]
    if prefix < 0 or given.prefix not in (None, prefix):
        raise WhenceError(
            f"The layout does not fit: {given.prefix or 0} prefix token(s) and a grid of {grid[0]}x"
            f"{grid[1]} patches are not the model's {tokens} tokens."
        )
    return prefix


def _grids_of_square_patches(height: int, width: int) -> list[tuple[int, int]]:
    """Every grid that square patches without overlap can make."""
    return [
        (height // side, width // side)
        for side in range(1, min(height, width) + 1)
        if height % side == 0 and width % side == 0
    ]
