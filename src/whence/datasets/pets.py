"""Read Oxford-IIIT Pet: cats and dogs, with a trimap of each animal.

Parkhi, Vedaldi, Zisserman and Jawahar, "Cats and dogs", CVPR 2012.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from whence._util.files import is_file, is_folder
from whence.datasets.base import Dataset, Label
from whence.datasets.folders import find_first_folder, list_photos
from whence.datasets.photos import Mask, PhotoRecord, read_labels
from whence.errors import WhenceError
from whence.inputs.tables import has_column

_SPECIES = {"1": "cat", "2": "dog"}
_LISTS = {"test": "test.txt", "trainval": "trainval.txt", "all": "list.txt"}
# The names that a column of labels may have, the best for a model first.
_LABELS = ("imagenet_class", "label", "species", "breed")
_PET_LABELS = ("imagenet_class", "species", "breed")
_CATS = frozenset(
    "Abyssinian Bengal Birman Bombay British_Shorthair Egyptian_Mau Maine_Coon Persian Ragdoll "
    "Russian_Blue Siamese Sphynx".split()
)
_DOGS = frozenset(
    "american_bulldog american_pit_bull_terrier basset_hound beagle boxer chihuahua "
    "english_cocker_spaniel english_setter german_shorthaired great_pyrenees havanese "
    "japanese_chin keeshond leonberger miniature_pinscher newfoundland pomeranian pug "
    "saint_bernard samoyed scottish_terrier shiba_inu staffordshire_bull_terrier wheaten_terrier "
    "yorkshire_terrier".split()
)


def has_layout(path: Path) -> bool:
    """Whether there are photos, and trimaps or a table of breeds."""
    path = _find_root(path)
    if not is_folder(path / "images"):
        return False
    return _find_trimaps(path) is not None or has_column(path / "labels.csv", _PET_LABELS)


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos of a split: ``test`` where there are splits, ``trainval``, or ``all``."""
    path = _find_root(path)
    images, trimaps = path / "images", _find_trimaps(path)
    if not is_folder(images):
        raise WhenceError(f"'{path}' has no folder 'images'.")
    photos = {file.stem: file for file in list_photos(images)}
    masks = {file.stem: file for file in list_photos(trimaps)} if trimaps is not None else {}
    decode = _decode_trimap if trimaps is not None else None
    table = path / "labels.csv"
    rows = _read_table(table, split) if is_file(table) else _read_lists(path, split, photos)
    records = {
        name: PhotoRecord(photos.get(name), label, masks.get(name), decode, _find_names(name))
        for name, label in rows
    }
    if not records:
        raise WhenceError(f"'{path}' has no photos of the split '{split}'.")
    return Dataset("pets" if split is None else f"pets-{split}", records)


def _find_root(path: Path) -> Path:
    return find_first_folder([path / "oxford-iiit-pet"]) or path


def _find_trimaps(path: Path) -> Path | None:
    return find_first_folder([path / "annotations" / "trimaps", path / "trimaps"])


def _decode_trimap(trimap: Image.Image) -> Mask:
    """Keep 1 animal; convert 2 background to 0, and 3, the disputed border, to 255 ignored."""
    values = np.asarray(trimap)
    if values.ndim != 2 or not np.isin(values, (1, 2, 3)).all():
        raise WhenceError("Its trimap holds other values than 1, 2 and 3.")
    return np.take(np.array([0, 1, 0, 255], dtype=np.uint8), values)


def _find_names(name: str) -> tuple[str, ...]:
    """The breed and the species of a photo that is named as published: ``Abyssinian_201``."""
    breed = name.rpartition("_")[0]
    if breed in _CATS:
        return breed, "cat"
    return (breed, "dog") if breed in _DOGS else ()


def _read_lists(
    path: Path, split: str | None, photos: dict[str, Path]
) -> Iterator[tuple[str, Label]]:
    """Yield name and species from the list of a split; all photos, unlabelled, without lists."""
    lists = {name: path / "annotations" / file for name, file in _LISTS.items()}
    splits = [name for name, file in lists.items() if is_file(file)]
    if split is None and not splits:
        yield from ((name, None) for name in photos)
        return
    chosen = splits[0] if split is None else split
    _check_split(path, chosen, splits)
    file = lists[chosen]
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WhenceError(f"The list '{file}' cannot be read.") from error
    for line in lines:
        fields = line.split()  # name, class, species, breed
        if fields and not line.startswith("#"):
            yield fields[0], _SPECIES.get(fields[2]) if len(fields) > 2 else None


def _read_table(file: Path, split: str | None) -> Iterator[tuple[str, Label]]:
    """Yield name and label of the rows of a split; of all rows if there are no splits."""
    rows = read_labels(file, _LABELS)
    splits = sorted({one for _, _, one in rows if one is not None})
    if split is None:
        split = "test" if "test" in splits else "all"
    elif split != "all":
        _check_split(file, split, splits)
    for image, label, one in rows:
        if split == "all" or one == split:
            yield Path(image).stem, label


def _check_split(path: Path, split: str, splits: list[str]) -> None:
    if split not in splits:
        there = ", ".join(splits) or "none"
        raise WhenceError(f"'{path}' has no split '{split}'; it has: {there}.")
