"""Photos of your own, each with a mask of the same name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from whence._util.files import is_file, is_folder
from whence.datasets.folders import photos_in, relative
from whence.datasets.photos import Photo, Photos, Pixels
from whence.datasets.sample import Dataset, Label
from whence.datasets.tables import read_table
from whence.errors import WhenceError


def recognises(path: Path) -> bool:
    """Whether there are the two folders."""
    return is_folder(path / "images") and is_folder(path / "masks")


def open_dataset(path: Path, split: str | None) -> Dataset:
    """The photos in ``images``, with the masks in ``masks``.

    Raises:
        WhenceError: The folders are not there, or hold no photos, or a split was asked for.
    """
    if split is not None:
        raise WhenceError("The format masks has no splits; name the folder of one instead.")
    if not recognises(path):
        raise WhenceError(f"'{path}' has no folders 'images' and 'masks'.")
    images, masks = path / "images", path / "masks"
    drawn = {_stem(file, masks): file for file in photos_in(masks, deep=True)}
    labels = _labels(path / "labels.csv")
    records = {}
    for file in photos_in(images, deep=True):
        name, stem = relative(file, images), _stem(file, images)
        label = labels.get(name, labels.get(stem))
        records[name] = Photo(file, label, drawn.get(stem), masked=True)
    return Photos(f"masks-{path.absolute().name}", records, _object)


def as_label(text: str) -> Label:
    """A class as a table gives it: the index of one, or the name of one, or none."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 10 else text or None


def _stem(file: Path, folder: Path) -> str:
    return relative(file.with_suffix(""), folder)


def _object(mask: Image.Image) -> Pixels:
    """Whatever is neither black nor transparent is the object."""
    if mask.mode.startswith(("1", "L", "I", "F")) and not mask.has_transparency_data:
        drawn: Pixels = np.asarray(mask) != 0
    else:
        # The colours count, not their numbers in a palette.
        values = np.asarray(mask.convert("RGBA"))
        drawn = values[..., :3].any(axis=-1) & (values[..., 3] > 0)
    return drawn.astype(np.uint8)


def _labels(file: Path) -> dict[str, Label]:
    if not is_file(file):
        return {}
    table = read_table(file, ("image",))
    label = table.position(("label", "class")) if table is not None else None
    if table is None or label is None:
        raise WhenceError(f"'{file}' has no columns 'image' and 'label'.")
    image = table.position(("image",)) or 0
    return {row[image].strip(): as_label(row[label]) for row in table.rows if table.whole(row)}
