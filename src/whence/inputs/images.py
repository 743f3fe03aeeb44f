"""Read image files, and convert images and arrays to RGB: upright, opaque and not too large."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from whence._util.files import check_is_file
from whence._util.text import first_line
from whence.errors import WhenceError

IMAGES = frozenset(
    ".avif .bmp .gif .jfif .jpeg .jpg .jpe .png .pgm .pnm .ppm .tga .tif .tiff .webp".split()
)
# Models look at a few hundred pixels. A longer side than this costs memory and shows nothing more.
MAX_SIDE = 4096


def read_image(path: str | Path) -> Image.Image:
    """Read an image file as RGB: upright, opaque, 8 bits, and no larger than `MAX_SIDE`."""
    path = Path(path)
    check_is_file(path, "an image")
    if threading.current_thread() is not threading.main_thread():
        return decode_image(path, f"'{path}'")  # all threads share the filters of warnings
    with warnings.catch_warnings():
        # Pillow warns of images that are large but that it opens all the same.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return decode_image(path, f"'{path}'")


def decode_image(file: Path | BinaryIO, name: str = "The photo") -> Image.Image:
    """Decode an image file, as `read_image` does; may be called from several threads.

    Args:
        file: Where it is, or its open content.
        name: What errors call it.

    Raises:
        WhenceError: It is no image, or damaged, or too large.
    """
    try:
        with Image.open(file) as image:
            if max(image.size) > MAX_SIDE:
                # A JPEG is then decoded at a half, a quarter or an eighth of its size.
                image.draft("RGB", (MAX_SIDE, MAX_SIDE))
            return to_rgb(image)
    except Image.DecompressionBombError:
        message = f"{name} has more pixels than whence opens; make it smaller first."
        raise WhenceError(message) from None
    except UnidentifiedImageError:
        raise WhenceError(f"{name} is not an image that Pillow knows.") from None
    except PermissionError:
        raise WhenceError(f"{name} may not be read.") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        reason = first_line(error) or type(error).__name__
        raise WhenceError(f"{name} is damaged: {reason}.") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB: upright, no larger than `MAX_SIDE`, white where transparent."""
    image.load()
    if max(image.size) > MAX_SIDE:
        scale = MAX_SIDE / max(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = image.resize((width, height))
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        return _scale_to_bytes(np.asarray(image), wide=image.mode in ("I", "F"))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


def image_from_array(array: np.ndarray[Any, Any]) -> Image.Image:
    """Convert an array to an image: (H, W), (H, W, 3) or (H, W, 4), bytes or floats from 0 to 1."""
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        hint = " Put the channels last." if array.ndim == 3 and array.shape[0] in (1, 3, 4) else ""
        raise WhenceError(
            f"An image array is (height, width, 3), not {tuple(array.shape)}.{hint} For a tensor "
            f"that is prepared for the model, use Explainer(model)."
        )
    if 0 in array.shape:
        raise WhenceError(f"The image array is empty: its shape is {tuple(array.shape)}.")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise WhenceError("A float image array holds values from 0 to 1, and no NaN.")
        array = np.round(array * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise WhenceError(f"An image array is of uint8 or floats from 0 to 1, not {array.dtype}.")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    return to_rgb(Image.fromarray(np.ascontiguousarray(array)))


def _scale_to_bytes(values: np.ndarray[Any, Any], wide: bool) -> Image.Image:
    """Convert grey values of more than 8 bits to 8: scaled, where Pillow would clip."""
    values = np.nan_to_num(values.astype(np.float32))
    if np.abs(values).max(initial=0) > 65535 or values.min(initial=0) < 0:
        values = values - values.min()
        values = values / max(float(values.max()), 1e-20)
    elif values.max(initial=0) > 1:
        # Modes of 32 bits are also used for plain 8-bit values.
        values = values / (255 if wide and values.max() <= 255 else 65535)
    return Image.fromarray(np.round(values * 255).astype(np.uint8)).convert("RGB")
