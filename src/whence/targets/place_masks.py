"""Masks of places that a user gives, as weights of the places of a dense head."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.errors import WhenceError
from whence.targets.base import TargetContext


def has_mask_shape(value: object) -> bool:
    """Whether a value is a tensor or an array with rows and columns."""
    return getattr(value, "ndim", 0) in (2, 3)


def fit_mask(mask: Tensor, rows: int, columns: int, context: TargetContext) -> Tensor:
    """Weights of the head's places, (batch or 1, rows, columns), of a mask.

    Args:
        mask: (rows, columns) or one for each sample, of the head's grid or of the image: then a
            place weighs what of it is in the mask.
        rows: Rows of the head's grid.
        columns: Its columns.
        context: What is known of the inputs.

    Raises:
        WhenceError: The mask has another shape, or no place of some sample.
    """
    weights = (mask > 0).double()
    weights = weights[None] if weights.dim() == 2 else weights
    if len(weights) not in (1, context.batch):
        raise WhenceError(f"{len(weights)} masks were given for {context.batch} sample(s).")
    image = _find_image_size(context)
    if tuple(weights.shape[1:]) not in ((rows, columns), image):
        of_image = "" if image is None else f", the image ({image[0]}, {image[1]})"
        raise WhenceError(
            f"The mask has shape {tuple(mask.shape)}; the head's grid is ({rows}, {columns})"
            f"{of_image}."
        )
    if tuple(weights.shape[1:]) != (rows, columns):
        weights = F.adaptive_avg_pool2d(weights[:, None], (rows, columns))[:, 0]
    if not bool(weights.flatten(1).any(1).all()):
        raise WhenceError("A mask of places has at least one place, for each sample.")
    return weights


def _find_image_size(context: TargetContext) -> tuple[int, int] | None:
    """Height and width of the image that goes in."""
    inputs = context.select_inputs(torch.arange(context.batch))
    if isinstance(inputs, Mapping):
        inputs = inputs.get("pixel_values")
    if not isinstance(inputs, Tensor) or inputs.dim() != 4:
        return None
    return inputs.shape[2], inputs.shape[3]
