"""What is known of a model that a picture is made for: its classes, its size, its pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError
from whence.models import LoadedModel, load
from whence.targets import find_class_names
from whence.tracing.replica import unwrapped

Model = nn.Module | LoadedModel | str | Path | None
Channels = float | Sequence[float] | None


@dataclass(frozen=True)
class Subject:
    """A model, and the pictures that it takes.

    Attributes:
        model: The model.
        class_names: Names of its classes, where they are known.
        size: Height and width of its pictures.
        mean: (3, 1, 1), what is subtracted from values from 0 to 1.
        std: (3, 1, 1), what the difference is divided by.
        dtype: Of the pixels that it takes.
    """

    model: nn.Module
    class_names: Mapping[int, str]
    size: tuple[int, int]
    mean: Tensor
    std: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, model: Model, image_size: Any, mean: Channels, std: Channels) -> Subject:
        """What a user means by a model, a size, and mean and std of pixels.

        Raises:
            WhenceError: There is no such model, it reads text, or something is not known of it.
        """
        loaded = _loaded(model)
        module = loaded.model if isinstance(loaded, LoadedModel) else loaded
        inner = unwrapped(module)
        if getattr(inner, "main_input_name", None) == "input_ids":
            raise WhenceError(f"{type(inner).__name__} reads texts; pictures need a vision model.")
        preparation = loaded.preparation if isinstance(loaded, LoadedModel) else None
        size = _size(image_size) if image_size is not None else _found_size(inner, preparation)
        kind = next((p for p in inner.parameters() if p.is_floating_point()), torch.zeros(0))
        like = torch.zeros(0, dtype=torch.promote_types(kind.dtype, torch.float32)).to(kind.device)
        found = _found_channels(inner, preparation)
        return cls(
            model=module,
            class_names=loaded.class_names
            if isinstance(loaded, LoadedModel)
            else find_class_names(inner),
            size=size,
            mean=_channels("mean", found[0] if mean is None else mean).to(like),
            std=_channels("std", found[1] if std is None else std).to(like),
            dtype=kind.dtype,
        )

    def normalized(self, picture: Tensor) -> Tensor:
        """A picture from 0 to 1, (3, height, width), as the model takes it: a batch of one."""
        return ((picture - self.mean) / self.std)[None]


def _loaded(model: Model) -> LoadedModel | nn.Module:
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
        raise WhenceError(f"The model '{model.name}' explains {model.kind}s, not images.")
    return model


def _found_size(model: nn.Module, preparation: Any) -> tuple[int, int]:
    """Where models of transformers, timm and torchvision tell the size of their pictures."""
    timm_size = _timm(model).get("input_size")
    places = (
        getattr(getattr(model, "config", None), "image_size", None),
        getattr(getattr(model, "patch_embed", None), "img_size", None),
        timm_size[1:] if timm_size else None,
        getattr(model, "image_size", None),
        getattr(preparation, "size", None),
    )
    for size in places:
        if size is not None:
            return _size(size)
    raise WhenceError(
        f"{type(model).__name__} does not tell the size of its pictures; say it: image_size=224."
    )


def _size(size: Any) -> tuple[int, int]:
    sides = [size, size] if hasattr(size, "__index__") else size
    try:
        height, width = (int(side) for side in sides)
        whole = [height, width] == list(sides) and not any(isinstance(s, bool) for s in sides)
    except (TypeError, ValueError):
        whole = False
    if not whole or min(height, width) < 2:
        raise WhenceError(f"image_size is a number of pixels, or height and width, not {size!r}.")
    return height, width


def _found_channels(model: nn.Module, preparation: Any) -> tuple[Channels, Channels]:
    """Mean and std of pixels from 0 to 1, from wherever they are known; else 0.5 and 0.5."""
    processor = getattr(preparation, "processor", None)
    if processor is not None:
        factor = getattr(processor, "rescale_factor", 1 / 255)
        scale = 255 * (factor if getattr(processor, "do_rescale", True) else 1)
        normal = bool(getattr(processor, "do_normalize", False))
        mean, std = (processor.image_mean, processor.image_std) if normal else (0.0, 1.0)
        of_photos = (_channels("mean", mean) / scale, _channels("std", std) / scale)
        return of_photos[0].flatten().tolist(), of_photos[1].flatten().tolist()
    for holder in (preparation, _timm(model)):
        get = holder.get if isinstance(holder, Mapping) else lambda n, h=holder: getattr(h, n, None)
        if get("mean") is not None and get("std") is not None:
            return get("mean"), get("std")
    return 0.5, 0.5


def _timm(model: nn.Module) -> Mapping[str, Any]:
    config = getattr(model, "pretrained_cfg", None)
    return config if isinstance(config, Mapping) else {}


def _channels(name: str, values: Any) -> Tensor:
    each = [values] * 3 if isinstance(values, int | float) else values
    try:
        numbers = [float(value) for value in each]
    except (TypeError, ValueError):
        numbers = []
    good = len(numbers) == 3 and all(map(math.isfinite, numbers))
    if not good or (name == "std" and min(numbers) <= 0):
        raise WhenceError(
            f"{name} is a number or one for each of three channels"
            f"{', above 0' if name == 'std' else ''}, not {values!r}."
        )
    return torch.tensor(numbers, dtype=torch.float64)[:, None, None]
