"""Photos in one folder a class: ImageNet, and whatever is laid out like it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whence._util.files import is_folder
from whence.datasets.classes import Classes
from whence.datasets.folders import has_photo, photos_in, relative, subfolders
from whence.datasets.photos import Photo, Photos
from whence.datasets.sample import Dataset
from whence.errors import WhenceError

# Without a split: photos that models were not trained on, if there are such.
_SPLITS = ("val", "validation", "test")
# Folders of other layouts, which are no classes.
_NO_CLASSES = frozenset("annotations images jpegimages masks trimaps".split())


def recognises(path: Path) -> bool:
    """Whether there are folders of classes, here or in the folder of a split."""
    return _photo_folder(path, None) is not None


def open_dataset(path: Path, split: str | None) -> Dataset:
    """The photos of a split, labelled by their folders.

    Raises:
        WhenceError: There is no such split, or there are no folders of classes.
    """
    folder = _photo_folder(path, split)
    if folder is None:
        what = "no folders of classes" if split is None else f"no split '{split}'"
        raise WhenceError(f"The folder '{path}' has {what} with photos in them.")
    folders = _class_folders(folder)
    classes = Classes(folder, [one.name for one in folders])
    records = {
        relative(file, folder): Photo(file, classes.label(one.name))
        for one in folders
        for file in photos_in(one)
    }
    return Photos("imagenet" if split is None else f"imagenet-{split}", records)


def split_folders(path: Path, split: str) -> Iterator[Path]:
    """Where the photos of a split of ImageNet may be, as it is published and as Kaggle packs it."""
    yield path / split
    yield path / "Data" / "CLS-LOC" / split
    yield path / "ILSVRC" / "Data" / "CLS-LOC" / split


def _photo_folder(path: Path, split: str | None) -> Path | None:
    if split is not None:
        candidates = [*split_folders(path, split), *([path] if path.name == split else [])]
    else:
        candidates = [one for name in _SPLITS for one in split_folders(path, name)]
        candidates += [path, *split_folders(path, "train")]
    return next((one for one in candidates if _holds_classes(one)), None)


def _holds_classes(folder: Path) -> bool:
    return is_folder(folder) and any(map(_is_class, subfolders(folder)))


def _class_folders(folder: Path) -> list[Path]:
    return [one for one in subfolders(folder) if _is_class(one)]


def _is_class(folder: Path) -> bool:
    return folder.name.lower() not in _NO_CLASSES and has_photo(folder)
