"""Read photos with a label and a mask from files, as several formats store them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from whence._util.files import is_file
from whence.datasets.base import Label, Sample, parse_label
from whence.datasets.folders import get_size
from whence.errors import WhenceError
from whence.inputs.images import MAX_SIDE, read_image
from whence.inputs.tables import read_table

Mask = NDArray[np.uint8]


@dataclass(frozen=True)
class PhotoRecord:
    """The files of a photo and its mask.

    `decode_mask` converts the image of the mask to 1 object, 0 background, 255 ignored. It is None
    if the dataset has no masks; otherwise a missing mask is an error.
    """

    file: Path | None  # None if the list of samples names a photo that does not exist
    label: Label = None
    mask: Path | None = None
    decode_mask: Callable[[Image.Image], Mask] | None = None
    other_labels: tuple[str, ...] = ()

    def read_sample(self, name: str) -> Sample:
        """Read the photo and its mask."""
        if self.file is None:
            raise WhenceError(f"The photo of '{name}' is not there.")
        photo = read_image(self.file)
        if self.decode_mask is None:
            return Sample(name, photo, self.label, other_labels=self.other_labels)
        if self.mask is None:
            raise WhenceError(f"The photo '{name}' has no mask.")
        with warnings.catch_warnings():
            # Pillow warns of images that are large but that it opens all the same.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            mask = _read_mask(self.mask, self.decode_mask)
            mask = _resize(mask, self.mask, self.file, photo)
            return Sample(name, photo, self.label, mask, other_labels=self.other_labels)

    def list_facts(self) -> list[object]:
        """Return the sizes of both files and the label."""
        return [get_size(self.file), self.label, get_size(self.mask)]


def read_labels(file: Path, columns: Sequence[str]) -> list[tuple[str, Label, str | None]]:
    """Read image, label (from the first of these columns) and split, if any, of whole rows."""
    table = read_table(file, ("image",))
    label = table.find_column(columns) if table is not None else None
    if table is None or label is None:
        raise WhenceError(f"'{file}' has no columns 'image' and one of {', '.join(columns)}.")
    split = table.find_column(("split",))
    return [
        (row[table.key].strip(), parse_label(row[label]), None if split is None else row[split])
        for row in table.list_whole_rows()
    ]


def _read_mask(path: Path, decode: Callable[[Image.Image], Mask]) -> Mask:
    if not is_file(path):
        raise WhenceError(f"The mask '{path}' is not there, or may not be read.")
    if path.suffix.lower() in (".jpg", ".jpeg"):
        raise WhenceError(f"The mask '{path}' is a JPEG, whose values are not exact; use PNG.")
    try:
        with Image.open(path) as image:
            return decode(ImageOps.exif_transpose(image))
    except WhenceError:
        raise
    except Image.DecompressionBombError:
        raise WhenceError(f"The mask '{path}' has more pixels than whence opens.") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise WhenceError(f"The mask '{path}' is damaged or is no image.") from error


def _resize(mask: Mask, path: Path, file: Path, photo: Image.Image) -> Mask:
    """Scale the mask to the photo, which is smaller than its file if that is very large."""
    height, width = mask.shape
    if (width, height) == photo.size:
        return mask
    with Image.open(file) as image:
        is_turned = image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
        upright = image.size[::-1] if is_turned else image.size
    if (width, height) != upright or max(width, height) <= MAX_SIDE:
        upright_photo = f"its photo, upright, has {photo.width} x {photo.height}"
        raise WhenceError(f"The mask '{path}' has {width} x {height} pixels, but {upright_photo}.")
    return np.array(Image.fromarray(mask).resize(photo.size, Image.Resampling.NEAREST))
