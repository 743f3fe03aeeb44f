"""Read ImageNet-Segmentation: photos and masks of their objects in one MATLAB file.

Guillaumin, Küttel and Ferrari, "ImageNet auto-annotation with segmentation propagation", IJCV 2014.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from whence._util.extras import import_extra
from whence._util.files import is_file
from whence.datasets.base import Dataset, Label, Sample
from whence.datasets.folders import get_size
from whence.datasets.imagenet import ClassIndex
from whence.errors import WhenceError
from whence.inputs.images import image_from_array

FILE = "gtsegs_ijcv.mat"
# A compressed array may claim any shape. No photo of this dataset is near this.
_MAX_VALUES = 200_000_000


def has_layout(path: Path) -> bool:
    """Whether this is the file, or the folder that holds it."""
    return is_file(path / FILE) or (is_file(path) and path.suffix.lower() == ".mat")


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos and masks in the file, named by their position."""
    if split is not None:
        raise WhenceError("imagenet_segmentation has no splits; leave the split out.")
    file = path if is_file(path) else path / FILE
    if not is_file(file):
        raise WhenceError(f"There is no '{FILE}' in '{path}'.")
    h5py = import_extra("h5py", "h5py", "benchmark")
    try:
        with h5py.File(file, "r") as opened:
            photos, masks = (opened[f"value/{part}"].shape for part in ("img", "gt"))
            wnids = _read_wnids(opened, photos[0])
    except Exception as error:  # OSError, KeyError, AttributeError, as the file is wrong
        expected = f"the {FILE} of ImageNet-Segmentation: an HDF5 file with value/img and value/gt"
        raise WhenceError(f"'{file}' is not {expected}.") from error
    if photos != masks or len(wnids) != photos[0]:
        raise WhenceError(f"'{file}' has {photos} photos, {masks} masks and {len(wnids)} classes.")
    classes, size = ClassIndex(file.parent), get_size(file)
    labels = (classes.find_label(wnid) if wnid else None for wnid in wnids)
    records = {
        f"{index:04}": SegmentationRecord(file, size, index, label)
        for index, label in enumerate(labels)
    }
    return Dataset("imagenet_segmentation", records)


@dataclass(frozen=True)
class SegmentationRecord:
    """A photo and its mask, by their position in the file.

    MATLAB stores arrays with their dimensions in reverse: a photo is (3, W, H), a mask (W, H).
    `value/img` refers to photos; `value/gt` to cells, of which the first refers to the mask;
    `value/target` to the letters of a WordNet id.
    """

    file: Path
    file_size: int | None
    index: int
    label: Label

    def read_sample(self, name: str) -> Sample:
        """Read the photo and its mask."""
        h5py = import_extra("h5py", "h5py", "benchmark")
        try:
            # Opened each time: an open file can be shared with no other process.
            with h5py.File(self.file, "r") as opened:
                pixels = _read_array(opened[opened["value/img"][self.index, 0]])
                cell = opened[opened["value/gt"][self.index, 0]]
                mask = _read_array(opened[cell[0, 0]])
        except WhenceError:
            raise
        except Exception as error:  # references that lead nowhere, damaged chunks, a missing file
            raise WhenceError(f"Record '{name}' of '{self.file}' is damaged.") from error
        photo = image_from_array(pixels)
        if mask.ndim != 2 or 0 in mask.shape or not np.isin(mask, (0, 1)).all():
            where = f"record '{name}' of '{self.file}'"
            raise WhenceError(f"The mask of {where} is not one of 0 and 1.")
        # Published results scale photo and mask each to 224 x 224, so their sizes may differ.
        image = Image.fromarray(mask.astype(np.uint8))
        resized = image.resize(photo.size, Image.Resampling.NEAREST)
        return Sample(name, photo, self.label, np.array(resized))

    def list_facts(self) -> list[object]:
        """Return the size of the whole file and the label."""
        return [self.file_size, self.label]


def _read_wnids(opened: Any, count: int) -> list[str]:
    """Read the WordNet ids of all photos; empty where the file has none."""
    if "value/target" not in opened:
        return [""] * count
    targets = (opened[reference] for reference in opened["value/target"][:, 0])
    return ["".join(map(chr, np.array(letters).reshape(-1)[:64])) for letters in targets]


def _read_array(stored: Any) -> NDArray[Any]:
    if math.prod(stored.shape) > _MAX_VALUES:
        raise WhenceError(f"An array of shape {stored.shape} is larger than whence opens.")
    return np.array(stored).transpose()
