"""Oxford-IIIT Pet: cats and dogs, with a trimap of each animal.

Parkhi, Vedaldi, Zisserman and Jawahar, "Cats and dogs", CVPR 2012.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from whence._util.files import is_file, is_folder
from whence.datasets.folders import first_folder, photos_in
from whence.datasets.masks import as_label
from whence.datasets.photos import Photo, Photos, Pixels
from whence.datasets.sample import Dataset, Label
from whence.datasets.tables import header_has, read_table
from whence.errors import WhenceError

_SPECIES = {"1": "cat", "2": "dog"}
# What a table may call the class, the best for a model first.
_LABELS = ("imagenet_class", "label", "species", "breed")
_OWN = ("imagenet_class", "species", "breed")


def recognises(path: Path) -> bool:
    """Whether there are photos, and trimaps or a table of breeds."""
    path = _home(path)
    if not is_folder(path / "images"):
        return False
    return _trimaps(path) is not None or header_has(path / "labels.csv", _OWN)


def open_dataset(path: Path, split: str | None) -> Dataset:
    """The photos of a split: ``test`` where there are splits, ``trainval``, or ``all``.

    Raises:
        WhenceError: There are no such photos.
    """
    path = _home(path)
    images, trimaps = path / "images", _trimaps(path)
    if not is_folder(images):
        raise WhenceError(f"'{path}' has no folder 'images'.")
    photos = {file.stem: file for file in photos_in(images)}
    drawn = {file.stem: file for file in photos_in(trimaps)} if trimaps is not None else {}
    records = {
        name: Photo(photos.get(name), label, drawn.get(name), masked=trimaps is not None)
        for name, label in _labelled(path, split, photos)
    }
    if not records:
        raise WhenceError(f"'{path}' has no photos of the split '{split}'.")
    return Photos("pets" if split is None else f"pets-{split}", records, _animal)


def _home(path: Path) -> Path:
    inside = path / "oxford-iiit-pet"
    return inside if is_folder(inside) else path


def _trimaps(path: Path) -> Path | None:
    return first_folder([path / "annotations" / "trimaps", path / "trimaps"])


def _animal(trimap: Image.Image) -> Pixels:
    """1 animal stays 1; 2 background becomes 0; 3, the border where people disagree, is ignored."""
    values = np.asarray(trimap)
    if values.ndim != 2 or not np.isin(values, (1, 2, 3)).all():
        raise WhenceError("Its trimap holds other values than 1, 2 and 3.")
    meanings: Pixels = np.array([0, 1, 0, 255], dtype=np.uint8)
    return np.take(meanings, values)


def _labelled(
    path: Path, split: str | None, photos: dict[str, Path]
) -> Iterator[tuple[str, Label]]:
    if is_file(path / "labels.csv"):
        return _from_table(path / "labels.csv", split)
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
    return _from_list(lists[chosen])


def _from_list(file: Path) -> Iterator[tuple[str, Label]]:
    """Lines of name, class, species, breed, as in ``annotations/test.txt``."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WhenceError(f"The list '{file}' cannot be read.") from error
    for line in lines:
        fields = line.split()
        if fields and not line.startswith("#"):
            yield fields[0], _SPECIES.get(fields[2]) if len(fields) > 2 else None


def _from_table(file: Path, split: str | None) -> Iterator[tuple[str, Label]]:
    """Rows of image, class and, if there are several, split."""
    table = read_table(file, ("image",))
    label = table.position(_LABELS) if table is not None else None
    if table is None or label is None:
        raise WhenceError(f"'{file}' has no columns 'image' and one of {', '.join(_LABELS)}.")
    image, splits = table.position(("image",)) or 0, table.position(("split",))
    rows = [row for row in table.rows if table.whole(row)]
    there = sorted({row[splits] for row in rows}) if splits is not None else []
    if split not in (None, "all", *there):
        raise WhenceError(f"'{file}' has no split '{split}'; it has: {', '.join(there) or 'none'}.")
    chosen = "test" if split is None and "test" in there else split
    for row in rows:
        if splits is None or chosen in (None, "all", row[splits]):
            yield Path(row[image].strip()).stem, as_label(row[label])
