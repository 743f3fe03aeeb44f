"""Photos with a label and a mask, as several formats have them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

from whence._util.files import is_file
from whence.datasets.folders import size_of
from whence.datasets.listed import Listed
from whence.datasets.sample import Label, Sample
from whence.errors import WhenceError
from whence.inputs.images import MAX_SIDE, read_image

Pixels = np.ndarray[Any, Any]
Meaning = Callable[[Image.Image], Pixels]


@dataclass(frozen=True)
class Photo:
    """Where a sample's parts are.

    Attributes:
        file: The photo; None if the list of samples names one that is not there.
        label: The true class.
        mask: The picture of where the object is.
        masked: Whether there should be one.
    """

    file: Path | None
    label: Label = None
    mask: Path | None = None
    masked: bool = False


class Photos(Listed[Photo]):
    """Photos in files.

    Args:
        name: The format, and which dataset of that format.
        records: The photos.
        meaning: From a mask as it is stored to 1 object, 0 background, 255 ignored.
    """

    def __init__(self, name: str, records: dict[str, Photo], meaning: Meaning = np.asarray) -> None:
        super().__init__(name, records)
        self._meaning = meaning

    def _sample(self, name: str, record: Photo) -> Sample:
        if record.file is None:
            raise WhenceError(f"The photo of '{name}' is not there.")
        photo = read_image(record.file)
        if record.masked and record.mask is None:
            raise WhenceError(f"The photo '{name}' has no mask.")
        mask = None
        if record.mask is not None:
            with warnings.catch_warnings():
                # Pillow warns of images that are large but that it opens all the same.
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                drawn = _read_mask(record.mask, self._meaning)
                mask = _fitted(drawn, record.mask, record.file, photo)
        return Sample(name, photo, record.label, mask)

    def _facts(self, record: Photo) -> list[Any]:
        return [size_of(record.file), record.label, size_of(record.mask)]


def _read_mask(path: Path, meaning: Meaning) -> Pixels:
    if not is_file(path):
        raise WhenceError(f"The mask '{path}' is not there, or may not be read.")
    if path.suffix.lower() in (".jpg", ".jpeg"):
        raise WhenceError(f"The mask '{path}' is a JPEG, whose values are not exact; use PNG.")
    try:
        with Image.open(path) as image:
            return meaning(ImageOps.exif_transpose(image))
    except WhenceError:
        raise
    except Image.DecompressionBombError:
        raise WhenceError(f"The mask '{path}' has more pixels than whence opens.") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise WhenceError(f"The mask '{path}' is damaged or is no image.") from error


def _fitted(mask: Pixels, path: Path, file: Path, photo: Image.Image) -> Pixels:
    """The mask at the size of the photo, which is smaller than its file if that was very large."""
    height, width = mask.shape
    if (width, height) == photo.size:
        return mask
    if (width, height) != _upright_size(file) or max(width, height) <= MAX_SIDE:
        raise WhenceError(
            f"The mask '{path}' has {width} x {height} pixels, but its photo, upright, "
            f"has {photo.width} x {photo.height}."
        )
    return np.array(Image.fromarray(mask).resize(photo.size, Image.Resampling.NEAREST))


def _upright_size(file: Path) -> tuple[int, int]:
    with Image.open(file) as stored:
        width, height = stored.size
        on_its_side = stored.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    return (height, width) if on_its_side else (width, height)
