"""The format imagenet: photos in one folder a class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whence._util.files import is_folder
from whence.datasets.classes import ClassIndex
from whence.datasets.folders import has_photo, list_photos, list_subfolders, name_relative
from whence.datasets.photos import PhotoDataset, PhotoRecord
from whence.datasets.sample import Dataset
from whence.errors import WhenceError

# Without a split: photos that models were not trained on, if there are such.
_SPLITS = ("val", "validation", "test")
# Folders of other layouts, which are no classes.
_NO_CLASSES = frozenset("annotations images jpegimages masks trimaps".split())


def has_layout(path: Path) -> bool:
    """Whether there are folders of classes in the path or in the folder of a split."""
    return _find_photo_folder(path, None) is not None


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos of a split, labelled by their folders.

    Raises:
        WhenceError: There is no such split, or there are no folders of classes.
    """
    folder = _find_photo_folder(path, split)
    if folder is None:
        what = "no folders of classes" if split is None else f"no split '{split}'"
        raise WhenceError(f"The folder '{path}' has {what} with photos in them.")
    folders = _list_class_folders(folder)
    classes = ClassIndex(folder, [one.name for one in folders])
    records = {
        name_relative(file, folder): PhotoRecord(file, classes.find_label(one.name))
        for one in folders
        for file in list_photos(one)
    }
    return PhotoDataset("imagenet" if split is None else f"imagenet-{split}", records)


def list_split_folders(path: Path, split: str) -> Iterator[Path]:
    """List where photos of a split of ImageNet may be, as published and as Kaggle packs it."""
    yield path / split
    yield path / "Data" / "CLS-LOC" / split
    yield path / "ILSVRC" / "Data" / "CLS-LOC" / split


def _find_photo_folder(path: Path, split: str | None) -> Path | None:
    if split is not None:
        candidates = [*list_split_folders(path, split), *([path] if path.name == split else [])]
    else:
        candidates = [one for name in _SPLITS for one in list_split_folders(path, name)]
        candidates += [path, *list_split_folders(path, "train")]
    return next((one for one in candidates if _has_classes(one)), None)


def _has_classes(folder: Path) -> bool:
    return is_folder(folder) and any(map(_is_class, list_subfolders(folder)))


def _list_class_folders(folder: Path) -> list[Path]:
    return [one for one in list_subfolders(folder) if _is_class(one)]


def _is_class(folder: Path) -> bool:
    return folder.name.lower() not in _NO_CLASSES and has_photo(folder)
