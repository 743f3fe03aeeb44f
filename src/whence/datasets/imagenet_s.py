"""Read ImageNet-S: photos of ImageNet with masks of the objects of their class.

Gao et al., "Large-scale unsupervised semantic segmentation", TPAMI 2022.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from whence._util.files import is_folder
from whence.datasets import folders
from whence.datasets.base import Dataset
from whence.datasets.imagenet import ClassIndex
from whence.datasets.photos import Mask, PhotoRecord
from whence.errors import WhenceError

_SUBSETS = ("ImageNetS919", "ImageNetS300", "ImageNetS50")
_CLASS_COUNTS = (919, 300, 50)
_SPLITS = ("validation", "train-semi")
_WNID = re.compile(r"n\d{8}")
_IGNORED_ID = 1000


def has_layout(path: Path) -> bool:
    """Whether there are photos by class, and masks of them in a folder ``…-segmentation``."""
    root = _find_root(path)
    return any(_has_split(root, split) for split in _SPLITS)


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos that have masks: ``validation``, or of another split ``train-semi``."""
    root = _find_root(path)
    splits = [one for one in _SPLITS if _has_split(root, one)]
    chosen = split if split is not None else next(iter(splits), _SPLITS[0])
    if not _has_split(root, chosen):
        listed = ", ".join(splits) or "none"
        raise WhenceError(
            f"'{root}' has no folders '{chosen}' and '{chosen}-segmentation' with classes in them; "
            f"splits with masks: {listed}."
        )
    photos, masks = root / chosen, _find_masks(root, chosen)
    wnids = _list_wnids(photos)
    classes, ids = ClassIndex(photos, wnids), _number_classes(wnids)
    records = {}
    for wnid in wnids:
        known = folders.list_photos(masks / wnid) if is_folder(masks / wnid) else []
        by_stem = {file.stem: file for file in known}
        decode = partial(_decode_mask, class_id=ids.get(wnid))
        for file in folders.list_photos(photos / wnid):
            name, label = folders.name_relative(file, photos), classes.find_label(wnid)
            records[name] = PhotoRecord(file, label, by_stem.get(file.stem), decode)
    subset = [str(len(wnids))] if ids else []
    return Dataset("-".join(["imagenet_s", *subset, *([split] if split else [])]), records)


def _find_root(path: Path) -> Path:
    """The folder of a subset, the largest of those that there are."""
    return folders.find_first_folder(path / name for name in _SUBSETS) or path


def _find_masks(root: Path, split: str) -> Path:
    return root / f"{split}-segmentation"


def _has_split(root: Path, split: str) -> bool:
    masks = _find_masks(root, split)
    return is_folder(root / split) and is_folder(masks) and bool(_list_wnids(masks))


def _list_wnids(folder: Path) -> list[str]:
    return [one.name for one in folders.list_subfolders(folder) if _WNID.fullmatch(one.name)]


def _number_classes(wnids: list[str]) -> dict[str, int]:
    """The number of each class in masks: its place in alphabetical order, from 1.

    Only a whole subset has that order; of some of its classes the numbers are not known.
    """
    if len(wnids) not in _CLASS_COUNTS:
        return {}
    return {wnid: number for number, wnid in enumerate(sorted(wnids), 1)}


def _decode_mask(mask: Image.Image, class_id: int | None) -> Mask:
    """Mark the pixels of a class, R + 256 G; 1000 is ignored, 0 and other classes are background.

    Without the number of the class, pixels of any class are the object.
    """
    if mask.mode not in ("RGB", "RGBA"):
        raise WhenceError(f"Its mask is no RGB image, but one of mode {mask.mode}.")
    values = np.asarray(mask.convert("RGB")).astype(np.int64)
    ids = values[..., 0] + 256 * values[..., 1]
    if (ids > _IGNORED_ID).any():
        raise WhenceError(f"Its mask holds numbers of classes above {_IGNORED_ID}.")
    is_object = ids > 0 if class_id is None else ids == class_id
    return np.where(ids == _IGNORED_ID, 255, is_object).astype(np.uint8)
