"""Read ImageNet, or your own photos in one folder a class, and find the index of each class."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from whence._util.files import is_folder
from whence.datasets import folders
from whence.datasets.base import Dataset, Label
from whence.datasets.photos import PhotoRecord
from whence.errors import WhenceError

# Without a split: photos that models were not trained on, if there are such.
_SPLITS = ("val", "validation", "test")
# Folders of other layouts, which are no classes.
_NO_CLASSES = frozenset("annotations images jpegimages masks trimaps".split())
_WNID = re.compile(r"n\d{8}")
# Folders inside ImageNet, above which the list of classes lies.
_INNER_FOLDERS = frozenset(
    "val validation train test cls-loc data ilsvrc annotations images".split()
)


def has_layout(path: Path) -> bool:
    """Whether there are class folders, here or in the folder of a split."""
    return _find_photo_folder(path, None) is not None


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos of a split, labelled by their folders."""
    folder = _find_photo_folder(path, split)
    if folder is None:
        what = "no folders of classes" if split is None else f"no split '{split}'"
        raise WhenceError(f"The folder '{path}' has {what} with photos in them.")
    class_folders = list(filter(_is_class, folders.list_subfolders(folder)))
    classes = ClassIndex(folder, [one.name for one in class_folders])
    records = {
        folders.name_relative(file, folder): PhotoRecord(file, classes.find_label(one.name))
        for one in class_folders
        for file in folders.list_photos(one)
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
    return is_folder(folder) and any(map(_is_class, folders.list_subfolders(folder)))


def _is_class(folder: Path) -> bool:
    return folder.name.lower() not in _NO_CLASSES and folders.has_photo(folder)


class ClassIndex:
    """The labels of class folders, by the folder's name.

    A WordNet id (``n01440764``) is a class of ImageNet. Its index is

    1. the one in ``classes.json``: ``{wnid: [index, name]}``;
    2. or the number of its line, from 0, in ``LOC_synset_mapping.txt``;
    3. or, if there are exactly 1000 such folders, its position in alphabetical order, which is the
       standard order;
    4. or else unknown, and the label is None.

    Any other name is itself the name of the class. The lists are looked for in the folder of the
    photos and above; `names` are those of all class folders, if they are known.
    """

    def __init__(self, folder: Path, names: Collection[str] = ()) -> None:
        self._indices = _read_indices(folder)
        wnids = sorted(filter(_WNID.fullmatch, names))
        if not self._indices and len(wnids) == 1000:
            self._indices = {wnid: index for index, wnid in enumerate(wnids)}

    def find_label(self, name: str) -> Label:
        """Return the label of the class folder of this name."""
        if name in self._indices:
            return self._indices[name]
        return None if _WNID.fullmatch(name) else name


def _read_indices(folder: Path) -> dict[str, int]:
    places = [folder.absolute()]  # and those above, up to the root of ImageNet
    while places[-1].name.lower() in _INNER_FOLDERS and places[-1] != places[-1].parent:
        places.append(places[-1].parent)
    for name, read in (("classes.json", _read_json), ("LOC_synset_mapping.txt", _read_mapping)):
        file = folders.find_first_file(one / name for one in places)
        if file is not None:
            return read(file)
    return {}


def _read_json(file: Path) -> dict[str, int]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        indices = {wnid: one[0] if isinstance(one, list) else one for wnid, one in content.items()}
    except (OSError, ValueError, AttributeError, IndexError, RecursionError):
        indices = {"": None}
    if not all(type(index) is int and index >= 0 for index in indices.values()):
        raise WhenceError(f"'{file}' is not a list of classes: {{wnid: [index, name], …}}.")
    return indices


def _read_mapping(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    wnids = [line.split(" ", 1)[0] for line in lines if line.strip()]
    if not wnids or not all(map(_WNID.fullmatch, wnids)):
        raise WhenceError(f"'{file}' is not a list of classes: a line 'n01440764 tench' for each.")
    return {wnid: index for index, wnid in enumerate(wnids)}
