"""The grid of patches, the prefix tokens and the pooled tokens of a model's sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import WhenceError

# Where no convolution makes the patches, at most this many prefix tokens are plausible.
_MAX_LIKELY_PREFIX = 8


@dataclass(frozen=True)
class Layout:
    """Positions of patches, prefix tokens and pooled tokens in a sequence.

    Pass a layout to `Explainer` to state what whence cannot find from the model.

    Attributes:
        grid: Rows and columns of patches, in reading order; None: found, or no image.
        prefix: Number of tokens before the first patch (class, distillation, registers); None:
            found.
        pooled: Positions of the tokens that the classifier reads; None: found from gradients.
        special: Positions of tokens that stand for no part of the input although they are looked
            up like words, such as ``[CLS]``; None: those that the tokenizer calls special.
    """

    grid: tuple[int, int] | None = None
    prefix: int | None = None
    pooled: tuple[int, ...] | None = None
    special: tuple[int, ...] | None = None

    def mark_input_tokens(self, tokens: int, device: torch.device) -> Tensor:
        """Mark the tokens, (tokens,), that may stand for a part of the input."""
        mask = torch.arange(tokens, device=device) >= (self.prefix or 0)
        if self.special:
            mask[list(self.special)] = False
        return mask


def find_layout(
    given: Layout, tokens: int, main: Tensor, grids: Sequence[tuple[int, ...]]
) -> Layout:
    """Complete a layout, as far as the user stated it, from a forward pass.

    ``tokens`` enter the first attention, ``main`` is the model's main input, and ``grids`` are the
    spatial sizes of the outputs of convolutions: most models make patches by one.
    """
    pooled, special = given.pooled, given.special
    _check_positions("pooled", pooled, tokens)
    _check_positions("special", special, tokens)
    if given.grid is not None:
        return Layout(given.grid, _count_prefix(given, given.grid, tokens), pooled, special)
    is_image = main.is_floating_point() and main.dim() == 4
    planes = [grid for grid in grids if len(grid) == 2] if main.is_floating_point() else []
    fitting = [(r, c) for r, c in planes if r * c <= tokens]
    if is_image and not planes:
        # No convolution made the patches; most likely they are squares without overlap.
        squares = _list_square_grids(main.shape[-2], main.shape[-1])
        fitting = [(r, c) for r, c in squares if 0 <= tokens - r * c <= _MAX_LIKELY_PREFIX]
        fitting = fitting if len(fitting) == 1 or given.prefix is not None else []
    if given.prefix is not None:
        fitting = [(r, c) for r, c in fitting if r * c + given.prefix == tokens]
    if fitting:
        grid = max(fitting, key=lambda shape: shape[0] * shape[1])
        return Layout(grid, _count_prefix(given, grid, tokens), pooled, special)
    if is_image:
        raise WhenceError(
            f"whence cannot tell how {tokens} tokens lie on an image of "
            f"{main.shape[-2]}x{main.shape[-1]} pixels. Say so: "
            f"Explainer(model, layout=Layout(grid=(rows, columns), prefix=1))."
        )
    return Layout(None, given.prefix or 0, pooled, special)


def _check_positions(name: str, positions: tuple[int, ...] | None, tokens: int) -> None:
    if positions is not None and not (positions and all(0 <= p < tokens for p in positions)):
        raise WhenceError(
            f"Layout({name}={positions}) does not fit: name some of the tokens 0 to {tokens - 1}."
        )


def _count_prefix(given: Layout, grid: tuple[int, int], tokens: int) -> int:
    prefix = tokens - grid[0] * grid[1]
    if prefix < 0 or given.prefix not in (None, prefix):
        raise WhenceError(
            f"The layout does not fit: {given.prefix or 0} prefix token(s) and a grid of {grid[0]}x"
            f"{grid[1]} patches are not the model's {tokens} tokens."
        )
    return prefix


def _list_square_grids(height: int, width: int) -> list[tuple[int, int]]:
    """List every grid that square patches without overlap can form."""
    return [
        (height // side, width // side)
        for side in range(1, min(height, width) + 1)
        if height % side == 0 and width % side == 0
    ]


def compute_pooling(dependence: Tensor, layout: Layout) -> Tensor:
    """Weight each token by how much the classifier reads it; weights sum to 1.

    Tokens do not mix after the last attention, so the logit has a gradient exactly at the tokens
    that the classifier reads. A class token alone gets weight 1; averaged tokens get equal weights;
    class and distillation token get a half each. Where a head reads prefix tokens and patches (the
    class token beside the patches' mean, as in DINOv2), each group is averaged, and each group
    weighs as much as the logit depends on it: ``dependence``, (..., tokens), at the last attention.
    """
    weights = torch.zeros_like(dependence)
    if layout.pooled is not None:
        weights[..., list(layout.pooled)] = 1 / len(layout.pooled)
        return weights
    is_prefix = torch.arange(dependence.shape[-1], device=dependence.device) < (layout.prefix or 0)
    total = dependence.sum(-1, keepdim=True)
    for group in (is_prefix, ~is_prefix):
        is_read = (dependence > 0) & group
        share = (dependence * group).sum(-1, keepdim=True) / total
        weights += torch.where(is_read, share / is_read.sum(-1, keepdim=True), 0)
    return weights
