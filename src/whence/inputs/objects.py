"""Read a photo or a text from a path, an image, an array or a string."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from whence.errors import WhenceError
from whence.inputs.images import image_from_array, to_rgb
from whence.inputs.sources import Source, guess_kind, is_path_like
from whence.inputs.texts import validate_text


def read_input(what: object) -> Image.Image | str:
    """Read a photo or a text from a path, a PIL image, an array or a string.

    Raises:
        WhenceError: The object is none of these, or cannot be read.
    """
    if isinstance(what, Image.Image):
        try:
            return to_rgb(what)
        except OSError as error:  # Pillow reads the pixels only now
            raise WhenceError(f"The image is damaged: {error}.") from error
    if isinstance(what, np.ndarray):
        return image_from_array(what)
    if isinstance(what, Path) or (isinstance(what, str) and _is_path(what)):
        path = Path(what)
        return Source(guess_kind(path) or "image", path).read()
    if isinstance(what, str):
        return validate_text(what)
    raise WhenceError(
        f"whence explains paths, images, arrays and strings, not {type(what).__name__}. For "
        f"tensors that are prepared for a model, use Explainer(model)."
    )


def _is_path(text: str) -> bool:
    try:
        return is_path_like(text) or Path(text).is_file()
    except (OSError, ValueError):  # a long text is no file name
        return False
