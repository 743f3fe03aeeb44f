"""The format masks: photos of your own, each with a mask of the same name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from whence._util.files import is_file, is_folder
from whence.datasets.folders import list_photos, name_relative
from whence.datasets.photos import PhotoDataset, PhotoRecord
from whence.datasets.sample import Dataset, Label, Pixels
from whence.errors import WhenceError
from whence.inputs.tables import read_table


def has_layout(path: Path) -> bool:
    """Whether the path has the folders ``images`` and ``masks``."""
    return is_folder(path / "images") and is_folder(path / "masks")


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos in ``images``, with the masks in ``masks``.

    Raises:
        WhenceError: The folders are not there, or hold no photos, or a split was asked for.
    """
    if split is not None:
        raise WhenceError("The format masks has no splits; name the folder of one instead.")
    if not has_layout(path):
        raise WhenceError(f"'{path}' has no folders 'images' and 'masks'.")
    images, masks = path / "images", path / "masks"
    drawn = {_name_stem(file, masks): file for file in list_photos(masks, deep=True)}
    labels = _read_labels(path / "labels.csv")
    records = {}
    for file in list_photos(images, deep=True):
        name, stem = name_relative(file, images), _name_stem(file, images)
        label = labels.get(name, labels.get(stem))
        records[name] = PhotoRecord(file, label, drawn.get(stem), masked=True)
    return PhotoDataset(f"masks-{path.absolute().name}", records, _find_object)


def parse_label(text: str) -> Label:
    """Parse a class of a table: its index, its name, or None where the field is empty."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 10 else text or None


def _name_stem(file: Path, folder: Path) -> str:
    return name_relative(file.with_suffix(""), folder)


def _find_object(mask: Image.Image) -> Pixels:
    """Mark pixels that are neither black nor transparent as the object."""
    if mask.mode.startswith(("1", "L", "I", "F")) and not mask.has_transparency_data:
        drawn: Pixels = np.asarray(mask) != 0
    else:
        # The colours count, not their numbers in a palette.
        values = np.asarray(mask.convert("RGBA"))
        drawn = values[..., :3].any(axis=-1) & (values[..., 3] > 0)
    return drawn.astype(np.uint8)


def _read_labels(file: Path) -> dict[str, Label]:
    if not is_file(file):
        return {}
    table = read_table(file, ("image",))
    label = table.find_column(("label", "class")) if table is not None else None
    if table is None or label is None:
        raise WhenceError(f"'{file}' has no columns 'image' and 'label'.")
    image = table.find_column(("image",)) or 0
    return {
        row[image].strip(): parse_label(row[label]) for row in table.rows if table.is_whole(row)
    }
