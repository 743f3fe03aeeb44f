"""Read FunnyBirds: rendered birds, whose classes are combinations of parts, with maps of the parts.

Hesse, Schaub-Meyer and Roth, "FunnyBirds: a synthetic vision dataset for a part-based analysis of
explainable AI methods", ICCV 2023.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from whence._util.files import is_file, is_folder
from whence.datasets.base import Dataset
from whence.datasets.folders import find_first_folder
from whence.datasets.photos import Mask, PhotoRecord
from whence.errors import WhenceError

_SPLITS = ("test", "train")
PART_COLORS = {
    "beak": ((255, 255, 0),),
    "eye": ((255, 255, 253), (255, 255, 254)),
    "foot": ((255, 0, 1), (255, 0, 2)),
    "tail": ((0, 0, 255),),
    "wing": ((0, 255, 1), (0, 255, 2)),
}
"""The colours of a part in maps; eyes, feet and wings have two."""
_BODY = (170, 170, 170)
_EMPTY = (0, 0, 0)
_THINGS = 204  # things around the bird are (204, 204, 204 and more)


def has_layout(path: Path) -> bool:
    """Whether there are classes, the list of a split and its pictures."""
    root = _find_root(path)
    return is_file(root / "classes.json") and any(_has_split(root, split) for split in _SPLITS)


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the birds of a split: ``test``, or ``train``."""
    root = _find_root(path)
    splits = [one for one in _SPLITS if _has_split(root, one)]
    chosen = split if split is not None else next(iter(splits), _SPLITS[0])
    if chosen not in splits:
        listed = ", ".join(splits) or "none"
        raise WhenceError(
            f"'{root}' has no 'dataset_{chosen}.json' with a folder '{chosen}'; splits: {listed}."
        )
    maps = root / f"{chosen}_part_map"
    decode = decode_bird if is_folder(maps) else None
    records = {}
    for number, label in enumerate(_read_classes(root / f"dataset_{chosen}.json")):
        name = f"{label}/{number:06}.png"
        photo, part_map = root / chosen / name, maps / name
        records[name] = PhotoRecord(
            photo if is_file(photo) else None,
            label,
            part_map if is_file(part_map) else None,
            decode,
        )
    return Dataset("funnybirds" if split is None else f"funnybirds-{split}", records)


def decode_bird(part_map: Image.Image) -> Mask:
    """Mark the bird, its body and all its parts; colours of nothing known are ignored."""
    colors = _read_colors(part_map)
    bird = _has_color(colors, _BODY, *(one for of_part in PART_COLORS.values() for one in of_part))
    things = (colors[..., :2] == _THINGS).all(-1) & (colors[..., 2] >= _THINGS)
    mask = np.full(bird.shape, 255, dtype=np.uint8)
    mask[things | _has_color(colors, _EMPTY)] = 0
    mask[bird] = 1
    return mask


def _read_colors(part_map: Image.Image) -> NDArray[np.uint8]:
    if part_map.mode not in ("RGB", "RGBA"):
        raise WhenceError(f"Its map of parts is no RGB image, but one of mode {part_map.mode}.")
    return np.asarray(part_map)[..., :3]


def _has_color(colors: NDArray[np.uint8], *of: tuple[int, int, int]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.zeros(colors.shape[:2], dtype=np.bool_)
    for color in of:
        found |= (colors == color).all(-1)
    return found


def _find_root(path: Path) -> Path:
    return find_first_folder([path / "FunnyBirds"]) or path


def _has_split(root: Path, split: str) -> bool:
    return is_file(root / f"dataset_{split}.json") and is_folder(root / split)


def _read_classes(file: Path) -> list[int]:
    """Read the class of each bird, in the order in which the pictures are numbered."""
    try:
        birds = json.loads(file.read_text(encoding="utf-8"))
        classes = [bird["class_idx"] for bird in birds]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise WhenceError(f"'{file}' is not a list of birds as FunnyBirds has it.") from error
    if not all(type(one) is int and one >= 0 for one in classes):
        raise WhenceError(f"'{file}' holds a 'class_idx' that is no number of a class.")
    return classes
