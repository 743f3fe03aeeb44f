"""The format pets: Oxford-IIIT Pet, cats and dogs with a trimap of each animal.

Parkhi, Vedaldi, Zisserman and Jawahar, "Cats and dogs", CVPR 2012.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from whence._util.files import is_file, is_folder
from whence.datasets.folders import find_first_folder, list_photos
from whence.datasets.masks import parse_label
from whence.datasets.photos import PhotoDataset, PhotoRecord
from whence.datasets.sample import Dataset, Label, Pixels
from whence.errors import WhenceError
from whence.inputs.tables import has_column, read_table

_SPECIES = {"1": "cat", "2": "dog"}
# Columns of a table that may hold the class, the best for a model first.
_LABELS = ("imagenet_class", "label", "species", "breed")
_PETS_COLUMNS = ("imagenet_class", "species", "breed")


def has_layout(path: Path) -> bool:
    """Whether the path has photos, and trimaps or a table of breeds."""
    path = _find_home(path)
    if not is_folder(path / "images"):
        return False
    return _find_trimaps(path) is not None or has_column(path / "labels.csv", _PETS_COLUMNS)


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos of a split: ``test`` where there are splits, ``trainval``, or ``all``.

    Raises:
        WhenceError: There are no such photos.
    """
    path = _find_home(path)
    images, trimaps = path / "images", _find_trimaps(path)
    if not is_folder(images):
        raise WhenceError(f"'{path}' has no folder 'images'.")
    photos = {file.stem: file for file in list_photos(images)}
    drawn = {file.stem: file for file in list_photos(trimaps)} if trimaps is not None else {}
    records = {
        name: PhotoRecord(photos.get(name), label, drawn.get(name), masked=trimaps is not None)
        for name, label in _list_labels(path, split, photos)
    }
    if not records:
        raise WhenceError(f"'{path}' has no photos of the split '{split}'.")
    return PhotoDataset("pets" if split is None else f"pets-{split}", records, _find_animal)


def _find_home(path: Path) -> Path:
    inside = path / "oxford-iiit-pet"
    return inside if is_folder(inside) else path


def _find_trimaps(path: Path) -> Path | None:
    return find_first_folder([path / "annotations" / "trimaps", path / "trimaps"])


def _find_animal(trimap: Image.Image) -> Pixels:
    """Map a trimap: 1 animal to 1, 2 background to 0, 3 border to 255, which is ignored."""
    values = np.asarray(trimap)
    if values.ndim != 2 or not np.isin(values, (1, 2, 3)).all():
        raise WhenceError("Its trimap holds other values than 1, 2 and 3.")
    meanings: Pixels = np.array([0, 1, 0, 255], dtype=np.uint8)
    return np.take(meanings, values)


def _list_labels(
    path: Path, split: str | None, photos: dict[str, Path]
) -> Iterator[tuple[str, Label]]:
    if is_file(path / "labels.csv"):
        return _read_table(path / "labels.csv", split)
    lists = {
        name: path / "annotations" / f"{file}.txt"
        for name, file in (("test", "test"), ("trainval", "trainval"), ("all", "list"))
    }
    there = [name for name, file in lists.items() if is_file(file)]
    if split is None and not there:
        return ((name, None) for name in photos)
    chosen = split if split is not None else there[0]
    if chosen not in there:
        raise WhenceError(f"'{path}' has no split '{split}'; it has: {', '.join(there) or 'none'}.")
    return _read_list(lists[chosen])


def _read_list(file: Path) -> Iterator[tuple[str, Label]]:
    """Read lines of name, class, species, breed, as in ``annotations/test.txt``."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WhenceError(f"The list '{file}' cannot be read.") from error
    for line in lines:
        fields = line.split()
        if fields and not line.startswith("#"):
            yield fields[0], _SPECIES.get(fields[2]) if len(fields) > 2 else None


def _read_table(file: Path, split: str | None) -> Iterator[tuple[str, Label]]:
    """Read rows of image, class and, if there are several, split."""
    table = read_table(file, ("image",))
    label = table.find_column(_LABELS) if table is not None else None
    if table is None or label is None:
        raise WhenceError(f"'{file}' has no columns 'image' and one of {', '.join(_LABELS)}.")
    image, splits = table.find_column(("image",)) or 0, table.find_column(("split",))
    rows = [row for row in table.rows if table.is_whole(row)]
    there = sorted({row[splits] for row in rows}) if splits is not None else []
    if split not in (None, "all", *there):
        raise WhenceError(f"'{file}' has no split '{split}'; it has: {', '.join(there) or 'none'}.")
    chosen = "test" if split is None and "test" in there else split
    for row in rows:
        if splits is None or chosen in (None, "all", row[splits]):
            yield Path(row[image].strip()).stem, parse_label(row[label])
