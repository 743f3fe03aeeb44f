"""A vision model with the size and the normalization of the images that it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from whence.errors import WhenceError
from whence.models import LoadedModel, load
from whence.models.image_preprocessing import PixelScale
from whence.targets import find_class_names
from whence.tracing import unwrap_model

Model = nn.Module | LoadedModel | str | Path | None
ImageSize = int | Sequence[int]
ChannelValues = float | Sequence[float]


@dataclass(frozen=True)
class ImageModel:
    """A vision model, and how an image with values from 0 to 1 becomes its input.

    ``size`` is height and width; ``mean`` and ``std``, (3, 1, 1), are those of values from 0 to 1;
    ``dtype`` is the type of the pixels that the model takes.
    """

    model: nn.Module
    class_names: Mapping[int, str]
    size: tuple[int, int]
    mean: Tensor
    std: Tensor
    dtype: torch.dtype

    @classmethod
    def resolve(
        cls,
        model: Model,
        image_size: ImageSize | None = None,
        mean: ChannelValues | None = None,
        std: ChannelValues | None = None,
    ) -> ImageModel:
        """Load a model, and find the size, mean and std that the user left out."""
        loaded = _load(model)
        module = loaded.model if isinstance(loaded, LoadedModel) else loaded
        inner = unwrap_model(module)
        names = loaded.class_names if isinstance(loaded, LoadedModel) else find_class_names(inner)
        if getattr(inner, "main_input_name", None) == "input_ids":
            raise WhenceError(f"{type(inner).__name__} reads texts; pictures need a vision model.")
        size = _find_size(inner, loaded) if image_size is None else _check_size(image_size)
        weight = next((p for p in inner.parameters() if p.is_floating_point()), torch.zeros(0))
        dtype = torch.promote_types(weight.dtype, torch.float32)
        like = torch.zeros(0, dtype=dtype).to(weight.device)
        own_mean, own_std = _find_normalization(inner, loaded)
        return cls(
            model=module,
            class_names=names,
            size=size,
            mean=_to_channels("mean", own_mean if mean is None else mean).to(like),
            std=_to_channels("std", own_std if std is None else std).to(like),
            dtype=weight.dtype,
        )

    def normalize(self, picture: Tensor) -> Tensor:
        """Normalize a picture from 0 to 1, (3, height, width), to the model's batch of one."""
        return ((picture - self.mean) / self.std)[None]


def _load(model: Model) -> LoadedModel | nn.Module:
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, str | Path) or model is None:
        return load(model, "image")
    if not isinstance(model, LoadedModel):
        raise WhenceError(
            f"A model is a torch.nn.Module, a name, a folder, or what whence.models.load returned, "
            f"not {type(model).__name__}."
        )
    if model.kind != "image":
        raise WhenceError(f"The model '{model.title}' explains {model.kind}s, not images.")
    return model


def _find_size(model: nn.Module, loaded: LoadedModel | nn.Module) -> tuple[int, int]:
    """Find the image size where models of transformers, timm and torchvision keep it."""
    timm_size = _get_timm_config(model).get("input_size")
    for size in (
        getattr(getattr(model, "config", None), "image_size", None),
        getattr(getattr(model, "patch_embed", None), "img_size", None),
        timm_size[1:] if isinstance(timm_size, Sequence) else None,
        getattr(model, "image_size", None),
        getattr(getattr(loaded, "preprocessor", None), "size", None),
    ):
        if size is not None:
            return _check_size(size)
    raise WhenceError(
        f"{type(model).__name__} does not tell the size of its pictures; say it: image_size=224."
    )


def _check_size(size: ImageSize) -> tuple[int, int]:
    sides = [size, size] if isinstance(size, int) or hasattr(size, "__index__") else size
    try:
        height, width = (int(side) for side in sides)
        whole = [height, width] == list(sides) and not any(isinstance(s, bool) for s in sides)
    except (TypeError, ValueError):
        whole = False
    if not whole or min(height, width) < 2:
        raise WhenceError(f"image_size is a number of pixels, or height and width, not {size!r}.")
    return height, width


def _find_normalization(
    model: nn.Module, loaded: LoadedModel | nn.Module
) -> tuple[ChannelValues, ChannelValues]:
    """Find mean and std of pixels from 0 to 1; 0.5 and 0.5 where they are not known."""
    if isinstance(loaded, LoadedModel):
        with suppress(WhenceError):  # a preparation of the user's own
            scale = PixelScale.from_model(loaded)
            return [v / scale.factor for v in scale.mean], [v / scale.factor for v in scale.std]
    mean, std = (_get_timm_config(model).get(name) for name in ("mean", "std"))
    if isinstance(mean, Sequence) and isinstance(std, Sequence):
        return mean, std
    return 0.5, 0.5


def _get_timm_config(model: nn.Module) -> Mapping[str, object]:
    config = getattr(model, "pretrained_cfg", None)
    return config if isinstance(config, Mapping) else {}


def _to_channels(name: str, values: ChannelValues) -> Tensor:
    each = [values] * 3 if isinstance(values, int | float) else values
    try:
        numbers = [float(value) for value in each]
    except (TypeError, ValueError):
        numbers = []
    is_valid = len(numbers) == 3 and all(map(math.isfinite, numbers))
    if not is_valid or (name == "std" and min(numbers) <= 0):
        raise WhenceError(
            f"{name} is a number or one for each of three channels"
            f"{', above 0' if name == 'std' else ''}, not {values!r}."
        )
    return torch.tensor(numbers, dtype=torch.float64)[:, None, None]
