"""The result of activation maximization: a picture, and the value that it reaches."""

import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from whence._util.files import write_atomically
from whence.errors import WhenceError
from whence.maximization.objectives import InnerTarget

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


@dataclass(frozen=True, eq=False)
class MaximalPicture:
    """A picture at a local maximum of a logit or of an inner activation.

    Attributes:
        target: The maximised target: a class index, `Channel`, `Token` or `Head`.
        name: Name of the class where it has one, or the target in words.
        pixels: (3, height, width), from 0 to 1.
        inputs: (1, 3, height, width), the picture as the model takes it.
        value: The target's value for the picture, without penalties.
        values: (steps,), the target's value at each step, for the randomly transformed picture.
        settings: Options of the maximization.
    """

    target: int | InnerTarget
    name: str
    pixels: Tensor = field(repr=False)
    inputs: Tensor = field(repr=False)
    value: float
    values: Tensor = field(repr=False)
    settings: dict[str, object] = field(repr=False)

    @property
    def image(self) -> Image.Image:
        """The picture with 8 bits a channel."""
        values = (self.pixels.detach().float().cpu() * 255).round().permute(1, 2, 0)
        return Image.fromarray(values.numpy().astype(np.uint8))

    def show(self) -> None:
        """Display in a notebook, or print to a terminal in coloured blocks."""
        from whence.render import display

        display.show_image(self.image, f"{self.name}: {self.value:.4g}")

    def _repr_png_(self) -> bytes:
        return self._encode("PNG")

    def save(self, path: str | Path) -> None:
        """Write an image file, PNG, JPEG or WebP by its ending, whole or not at all.

        Raises:
            WhenceError: The ending is another, or the file cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() not in _FORMATS:
            raise WhenceError(f"'{path}' should end in {', '.join(_FORMATS)}.")
        write_atomically(path, self._encode(_FORMATS[path.suffix.lower()]))

    def _encode(self, file_format: str) -> bytes:
        buffer = io.BytesIO()
        options = {"optimize": True} if file_format == "PNG" else {"quality": 95}
        self.image.save(buffer, file_format, **options)
        return buffer.getvalue()
