"""Read photos of your own that lie in one folder, with labels in a table or without any."""

from __future__ import annotations

from pathlib import Path

from whence._util.files import is_file
from whence.datasets.base import Dataset
from whence.datasets.folders import find_first_folder, has_photo, list_photos, name_relative
from whence.datasets.photos import PhotoRecord, read_labels
from whence.errors import WhenceError


def has_layout(path: Path) -> bool:
    """Whether photos lie in the folder itself, or in ``images``."""
    return _find_photos(path) is not None


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos; their labels are in ``labels.csv``, if it is there."""
    if split is not None:
        raise WhenceError("The format photos has no splits; name the folder of one instead.")
    folder = _find_photos(path)
    if folder is None:
        raise WhenceError(f"'{path}' holds no photo, and neither does a folder 'images' in it.")
    table = path / "labels.csv"
    rows = read_labels(table, ("label", "class")) if is_file(table) else []
    labels = {image: label for image, label, _ in rows}
    records = {}
    for file in list_photos(folder):
        name = name_relative(file, folder)
        records[name] = PhotoRecord(file, labels.get(name, labels.get(file.stem)))
    return Dataset(f"photos-{path.absolute().name}", records)


def _find_photos(path: Path) -> Path | None:
    return find_first_folder(one for one in (path, path / "images") if has_photo(one))
