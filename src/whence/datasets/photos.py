"""Datasets of photo files with labels and masks: the common part of several formats."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps
from typing_extensions import override

from whence._util.files import is_file
from whence.datasets.base import JsonValue, ListedDataset
from whence.datasets.folders import get_size
from whence.datasets.sample import Label, Pixels, Sample
from whence.errors import WhenceError
from whence.inputs.images import MAX_SIDE, read_image

MaskReader = Callable[[Image.Image], Pixels]


@dataclass(frozen=True)
class PhotoRecord:
    """The files and the label of one sample.

    Attributes:
        file: The photo; None if it is listed but missing.
        label: The true class.
        mask: The picture that marks the object.
        masked: Whether a mask is required.
    """

    file: Path | None
    label: Label = None
    mask: Path | None = None
    masked: bool = False


class PhotoDataset(ListedDataset[PhotoRecord]):
    """Photos in files.

    Args:
        name: The format, and which dataset of that format.
        records: The photos.
        read_mask: Maps a stored mask to 1 object, 0 background, 255 ignored.
    """

    def __init__(
        self, name: str, records: dict[str, PhotoRecord], read_mask: MaskReader = np.asarray
    ) -> None:
        super().__init__(name, records)
        self._read_mask = read_mask

    @override
    def _read_sample(self, name: str, record: PhotoRecord) -> Sample:
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
                drawn = _open_mask(record.mask, self._read_mask)
                mask = _fit_mask(drawn, record.mask, record.file, photo)
        return Sample(name, photo, record.label, mask)

    @override
    def _list_facts(self, record: PhotoRecord) -> list[JsonValue]:
        return [get_size(record.file), record.label, get_size(record.mask)]


def _open_mask(path: Path, read_mask: MaskReader) -> Pixels:
    if not is_file(path):
        raise WhenceError(f"The mask '{path}' is not there, or may not be read.")
    if path.suffix.lower() in (".jpg", ".jpeg"):
        raise WhenceError(f"The mask '{path}' is a JPEG, whose values are not exact; use PNG.")
    try:
        with Image.open(path) as image:
            return read_mask(ImageOps.exif_transpose(image))
    except WhenceError:
        raise
    except Image.DecompressionBombError:
        raise WhenceError(f"The mask '{path}' has more pixels than whence opens.") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise WhenceError(f"The mask '{path}' is damaged or is no image.") from error


def _fit_mask(mask: Pixels, path: Path, file: Path, photo: Image.Image) -> Pixels:
    """Resize a mask to the photo, which is smaller than its file if that was very large."""
    height, width = mask.shape
    if (width, height) == photo.size:
        return mask
    if (width, height) != _read_upright_size(file) or max(width, height) <= MAX_SIDE:
        raise WhenceError(
            f"The mask '{path}' has {width} x {height} pixels, but its photo, upright, "
            f"has {photo.width} x {photo.height}."
        )
    return np.array(Image.fromarray(mask).resize(photo.size, Image.Resampling.NEAREST))


def _read_upright_size(file: Path) -> tuple[int, int]:
    with Image.open(file) as stored:
        width, height = stored.size
        on_its_side = stored.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    return (height, width) if on_its_side else (width, height)
