"""Images that a model takes as rows of patches, of any number of rows and columns (NaFlex)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from whence.engine.packed_images import ImagePacker
from whence.engine.request import Subject
from whence.evidence.sample_rows import SampleRows
from whence.inputs.arguments import ModelArguments
from whence.tracing import unwrap_model

_PIXELS, _MASK, _SHAPES = "pixel_values", "pixel_attention_mask", "spatial_shapes"


class NaflexPacker(ImagePacker):
    """A model of patches that takes images, (batch, channels, height, width), of one size."""

    main_input_name = _PIXELS

    def __init__(self, model: nn.Module, side: int) -> None:
        super().__init__(model)
        self.side = side

    @override
    def pack(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        pixels: Tensor = kwargs[_PIXELS]
        batch, channels, height, width = pixels.shape
        rows, columns = height // self.side, width // self.side
        squares = pixels.reshape(batch, channels, rows, self.side, columns, self.side)
        patches = squares.permute(0, 2, 4, 3, 5, 1).reshape(batch, rows * columns, -1)
        shapes = torch.tensor([[rows, columns]] * batch, device=pixels.device)
        mask = torch.ones(patches.shape[:2], dtype=torch.long, device=pixels.device)
        return {**kwargs, _PIXELS: patches, _MASK: mask, _SHAPES: shapes}


def restore_image(patches: Tensor, shape: Tensor, side: int) -> Tensor:
    """Put rows of patches together to an image, (channels, height, width); padding is left out."""
    rows, columns = (int(one) for one in shape)
    squares = patches[: rows * columns].reshape(rows, columns, side, side, -1)
    return squares.permute(4, 0, 2, 1, 3).reshape(-1, rows * side, columns * side)


def find_patch_side(model: nn.Module) -> int:
    """The side of a model's patches, in pixels; 0 if it is not known."""
    config = getattr(unwrap_model(model), "config", None)
    side = getattr(getattr(config, "vision_config", config), "patch_size", 0)
    return side if isinstance(side, int) else 0


def restore_images(
    subject: Subject, arguments: ModelArguments
) -> tuple[Subject, ModelArguments] | None:
    """The model and its arguments with images in place of patches; None if there are none.

    Images of different sizes stay rows of patches.
    """
    kwargs, side = arguments.kwargs, find_patch_side(subject.model)
    pixels, shapes = kwargs.get(_PIXELS), kwargs.get(_SHAPES)
    if not isinstance(pixels, Tensor) or not isinstance(shapes, Tensor) or pixels.dim() != 3:
        return None
    one_size = bool((shapes == shapes[0]).all()) and len(shapes) == len(pixels)
    if _PIXELS not in arguments.explained_names or not one_size or not side:
        return None
    if pixels.shape[2] % side**2 or int(shapes[0].prod()) > pixels.shape[1]:
        return None
    others = {name: x for name, x in kwargs.items() if name not in (_MASK, _SHAPES)}
    images = [restore_image(one, shapes[0], side) for one in pixels]
    arguments = dataclasses.replace(arguments, kwargs={**others, _PIXELS: torch.stack(images)})
    packer = NaflexPacker(unwrap_model(subject.model), side)
    return dataclasses.replace(subject, model=packer, rows=SampleRows()), arguments
