"""Read photos in one folder a class: ImageNet, and photos of your own in that layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whence._util.files import is_folder
from whence.datasets.base import Dataset
from whence.datasets.classes import ClassIndex
from whence.datasets.folders import has_photo, list_photos, list_subfolders, name_relative
from whence.datasets.photos import PhotoRecord
from whence.errors import WhenceError

# Without a split: photos that models were not trained on, if there are such.
_SPLITS = ("val", "validation", "test")
# Folders of other layouts, which are no classes.
_NO_CLASSES = frozenset("annotations images jpegimages masks trimaps".split())


def has_layout(path: Path) -> bool:
    """Whether there are class folders, here or in the folder of a split."""
    return _find_photo_folder(path, None) is not None


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos of a split, labelled by their folders."""
    folder = _find_photo_folder(path, split)
    if folder is None:
        what = "no folders of classes" if split is None else f"no split '{split}'"
        raise WhenceError(f"The folder '{path}' has {what} with photos in them.")
    class_folders = list(filter(_is_class, list_subfolders(folder)))
    classes = ClassIndex(folder, [one.name for one in class_folders])
    records = {
        name_relative(file, folder): PhotoRecord(file, classes.find_label(one.name))
        for one in class_folders
        for file in list_photos(one)
    }
    return Dataset("imagenet" if split is None else f"imagenet-{split}", records)


def list_split_folders(path: Path, split: str) -> Iterator[Path]:
    """Yield the folders where a split of ImageNet may be, as published and as on Kaggle."""
    yield path / split
    yield path / "Data" / "CLS-LOC" / split
    yield path / "ILSVRC" / "Data" / "CLS-LOC" / split


def _find_photo_folder(path: Path, split: str | None) -> Path | None:
    if split is not None:
        candidates = [*list_split_folders(path, split), *([path] if path.name == split else [])]
    else:
        candidates = [one for name in _SPLITS for one in list_split_folders(path, name)]
        candidates += [path, *list_split_folders(path, "train")]
    return next(filter(_has_classes, candidates), None)


def _has_classes(folder: Path) -> bool:
    return is_folder(folder) and any(map(_is_class, list_subfolders(folder)))


def _is_class(folder: Path) -> bool:
    return folder.name.lower() not in _NO_CLASSES and has_photo(folder)
