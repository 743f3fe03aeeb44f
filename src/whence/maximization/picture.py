"""The answer: a picture, and how much the model answers to it."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from whence._util.files import write_whole
from whence.errors import WhenceError

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


@dataclass(frozen=True, eq=False)
class MaximalPicture:
    """A picture that a part of a model answers to most, as far as was found.

    Attributes:
        target: What was maximised: a class index, `Unit`, `Token` or `Head`.
        name: The name of the class, where it has one, or what was maximised in words.
        pixels: (3, height, width), from 0 to 1.
        inputs: (1, 3, height, width), the same as the model takes it.
        value: What was maximised, at the picture as it is: a logit, say, without any priors.
        values: (steps,), the same at each step, of the picture as it was moved about there.
        settings: What the picture was made with.
    """

    target: Any
    name: str
    pixels: Tensor = field(repr=False)
    inputs: Tensor = field(repr=False)
    value: float
    values: Tensor = field(repr=False)
    settings: dict[str, Any] = field(repr=False)

    @property
    def image(self) -> Image.Image:
        """The picture, of 8 bits."""
        values = (self.pixels.detach().float().cpu() * 255).round().permute(1, 2, 0)
        return Image.fromarray(values.numpy().astype(np.uint8))

    def show(self) -> None:
        """Display in a notebook, or print to a terminal in coloured blocks."""
        from whence.render import display

        display.show_picture(self.image, f"{self.name}: {self.value:.4g}")

    def _repr_png_(self) -> bytes:
        return self._encoded("PNG")

    def save(self, path: str | Path) -> None:
        """Write an image file, PNG, JPEG or WebP by its ending, whole or not at all.

        Raises:
            WhenceError: The ending is another, or the place cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() not in _FORMATS:
            raise WhenceError(f"'{path}' should end in {', '.join(_FORMATS)}.")
        write_whole(path, self._encoded(_FORMATS[path.suffix.lower()]))

    def _encoded(self, kind: str) -> bytes:
        buffer = io.BytesIO()
        self.image.save(buffer, kind, **({"quality": 95} if kind != "PNG" else {"optimize": True}))
        return buffer.getvalue()
