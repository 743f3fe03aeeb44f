"""A model's pixels as values from 0 to 1, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whence.errors import WhenceError
from whence.models.geometry import Geometry
from whence.models.loaded import LoadedModel


@dataclass(frozen=True)
class Scale:
    """How a model's pixels follow from values from 0 to 1: (value * factor - mean) / std.

    Attributes:
        mean: Of each channel.
        std: Of each channel.
        factor: 1, or 255 for models that take bytes.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    factor: float = 1.0

    @classmethod
    def of(cls, loaded: LoadedModel) -> Scale:
        """The scale of a model, told by its preparation.

        Raises:
            WhenceError: It does not tell.
        """
        preparation: Any = loaded.preparation
        if isinstance(preparation, Geometry):
            return cls(preparation.mean, preparation.std)
        processor = processor_of(loaded)
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        if getattr(processor, "do_normalize", False):
            mean, std = tuple(processor.image_mean), tuple(processor.image_std)
        rescaled = getattr(processor, "do_rescale", True)
        factor = 255 * getattr(processor, "rescale_factor", 1 / 255) if rescaled else 255.0
        return cls(mean, std, factor)

    def to_unit(self, pixels: Tensor) -> Tensor:
        """Values from 0 to 1 of the model's pixels, (..., 3, height, width)."""
        mean, std = self._shaped(pixels)
        return ((pixels * std + mean) / self.factor).clamp(0, 1)

    def to_model(self, values: Tensor) -> Tensor:
        """The model's pixels of values from 0 to 1."""
        mean, std = self._shaped(values)
        return (values * self.factor - mean) / std

    def _shaped(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (like.new_tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        return mean, std


def processor_of(loaded: LoadedModel) -> Any:
    """The image processor of transformers that prepares a model's photos.

    Raises:
        WhenceError: Something else does.
    """
    processor = getattr(loaded.preparation, "processor", None)
    if processor is None:
        raise WhenceError(
            f"whence does not know how '{loaded.name}' prepares photos: its preparation is neither "
            f"a Geometry nor an image processor of transformers."
        )
    return processor
