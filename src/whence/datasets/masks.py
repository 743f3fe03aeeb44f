"""Read photos of your own, each with a mask of the same name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from whence._util.files import is_file, is_folder
from whence.datasets.base import Dataset
from whence.datasets.folders import list_photos, name_relative
from whence.datasets.photos import Mask, PhotoRecord, read_labels
from whence.errors import WhenceError


def has_layout(path: Path) -> bool:
    """Whether there are folders ``images`` and ``masks``."""
    return is_folder(path / "images") and is_folder(path / "masks")


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos in ``images``, with the masks in ``masks``."""
    if split is not None:
        raise WhenceError("The format masks has no splits; name the folder of one instead.")
    if not has_layout(path):
        raise WhenceError(f"'{path}' has no folders 'images' and 'masks'.")
    images, masks, table = path / "images", path / "masks", path / "labels.csv"
    files = list_photos(masks, deep=True)
    by_stem = {name_relative(file.with_suffix(""), masks): file for file in files}
    rows = read_labels(table, ("label", "class")) if is_file(table) else []
    labels = {image: label for image, label, _ in rows}
    records = {}
    for file in list_photos(images, deep=True):
        name, stem = name_relative(file, images), name_relative(file.with_suffix(""), images)
        label = labels.get(name, labels.get(stem))
        records[name] = PhotoRecord(file, label, by_stem.get(stem), _decode_mask)
    return Dataset(f"masks-{path.absolute().name}", records)


def _decode_mask(mask: Image.Image) -> Mask:
    """Mark every pixel that is neither black nor transparent as the object."""
    if mask.mode.startswith(("1", "L", "I", "F")) and not mask.has_transparency_data:
        is_object = np.asarray(mask) != 0
    else:
        # The colours count, not their numbers in a palette.
        values = np.asarray(mask.convert("RGBA"))
        is_object = values[..., :3].any(axis=-1) & (values[..., 3] > 0)
    return np.asarray(is_object, dtype=np.uint8)
