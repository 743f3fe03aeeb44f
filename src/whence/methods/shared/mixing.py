"""How much tokens take from each other, as one matrix for each layer, read as scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.methods.shared.maps import carried


def layers_of(layer: int | None, layers: int) -> list[int]:
    """All layers, or the one of an index; negative ones count from the last.

    Raises:
        WhenceError: There is no such layer.
    """
    if layer is None:
        return list(range(layers))
    if not -layers <= layer < layers:
        raise WhenceError(
            f"layer={layer} does not exist: the model has {layers} attention layers, 0 to "
            f"{layers - 1}, or -{layers} to -1 counted from the last."
        )
    return [layer % layers]


def shares(matrix: Tensor) -> Tensor:
    """A matrix of non-negative entries with rows that sum to 1; rows of zeros stay zeros."""
    sums = matrix.sum(-1, keepdim=True)
    return matrix / torch.where(sums == 0, 1, sums)


def rolled_out(matrices: Sequence[Tensor], rows: Tensor, add_identity: bool) -> Tensor:
    """Some rows of the product of all layers' matrices.

    Args:
        matrices: (batch, tokens, tokens) for each layer, the one nearest the input first, with rows
            that sum to 1.
        rows: (classes, batch, tokens), weights of the rows that are read at the last layer.
        add_identity: Whether matrices lack the skip connection, so that it is added as the
            identity, and rows are divided by their sum again. What identities alone carry from the
            top to the bottom says which tokens are read, and is left out.
    """
    if not add_identity:
        for matrix in reversed(matrices):
            rows = (rows[..., None, :] @ matrix)[..., 0, :]
        return rows
    kept, moved = rows, torch.zeros_like(rows)
    for matrix in reversed(matrices):
        kept, moved = carried(kept, moved, matrix, normalize_rows=True)
    return moved
