"""Read ImageNet localisation: photos with bounding boxes from Pascal VOC's XML files.

Russakovsky et al., "ImageNet large scale visual recognition challenge", IJCV 2015.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from whence.datasets import folders
from whence.datasets.base import Box, Dataset, Sample
from whence.datasets.imagenet import ClassIndex, list_split_folders
from whence.errors import WhenceError
from whence.inputs.images import read_image

_MAX_BYTES = 1_000_000


def has_layout(path: Path) -> bool:
    """Whether there are photos, and XML files among the annotations."""
    annotations = _find_annotation_folder(path, None)
    if annotations is None or _find_photo_folder(path, None) is None:
        return False
    return any(folders.find_files(annotations, ".xml"))


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the photos that have boxes."""
    photos, annotations = _find_photo_folder(path, split), _find_annotation_folder(path, split)
    if photos is None or annotations is None:
        missing = "photos" if photos is None else "folder 'Annotations'"
        raise WhenceError(f"'{path}' has no {missing}{f' of a split {split!r}' if split else ''}.")
    classes = ClassIndex(photos, [folder.name for folder in folders.list_subfolders(photos)])
    by_stem = defaultdict(list)
    for file in folders.find_files(annotations, ".xml"):
        by_stem[file.stem].append(file)
    records = {}
    for photo in folders.list_photos(photos, deep=True):
        files = by_stem.get(photo.stem, [])
        near = [file for file in files if file.parent.name == photo.parent.name]
        if files:
            chosen = near if len(near) == 1 else sorted(files)
            records[folders.name_relative(photo, photos)] = BoxRecord(photo, tuple(chosen), classes)
    if not records:
        raise WhenceError(f"No photo in '{photos}' has an XML file of its name in '{annotations}'.")
    return Dataset("imagenet_boxes" if split is None else f"imagenet_boxes-{split}", records)


@dataclass(frozen=True)
class BoxRecord:
    """A photo and the XML file of its boxes; several files if their names do not decide."""

    photo: Path
    annotations: tuple[Path, ...]
    classes: ClassIndex

    def read_sample(self, name: str) -> Sample:
        """Read the photo and the boxes of the objects of its class."""
        if len(self.annotations) > 1:
            raise WhenceError(f"Several XML files have the name of the photo '{name}'.")
        file = self.annotations[0]
        size, objects = _read_boxes(file)
        if not objects:
            raise WhenceError(f"'{file}' has no box.")
        photo, wnid = read_image(self.photo), objects[0][0]
        boxes = [_fit_box(box, size, photo.size, file) for one, box in objects if one == wnid]
        return Sample(name, photo, self.classes.find_label(wnid), boxes=tuple(boxes))

    def list_facts(self) -> list[object]:
        """Return the size of the photo and hashes of the XML files."""
        # The boxes themselves: another number is mostly as long. These files are small.
        contents = [hashlib.sha256(_read_bytes(file)).hexdigest() for file in self.annotations]
        return [folders.get_size(self.photo), *contents]


def _read_boxes(file: Path) -> tuple[tuple[float, float] | None, list[tuple[str, Box]]]:
    """Read the size of the photo, and the class and box of each object, from an XML file."""
    content = _read_bytes(file)
    # Entities can grow without bound or name other files; the format has none.
    if b"<!DOCTYPE" in content.replace(b"\0", b""):
        raise WhenceError(f"'{file}' has a DOCTYPE, which a file of boxes does not need.")
    try:
        root = ElementTree.fromstring(content)
        return _parse_size(root.find("size")), list(map(_parse_object, root.iter("object")))
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        raise WhenceError(f"'{file}' is not a file of boxes as Pascal VOC has them.") from error


def _read_bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise WhenceError(f"'{file}' cannot be read: {error.strerror}.") from error
    if len(content) > _MAX_BYTES:
        raise WhenceError(f"'{file}' is too large for a file of boxes.")
    return content


def _parse_numbers(element: ElementTree.Element, *paths: str) -> list[float]:
    numbers = [float(element.findtext(path) or "") for path in paths]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(paths)
    return numbers


def _parse_object(element: ElementTree.Element) -> tuple[str, Box]:
    edges = (f"bndbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))
    left, top, right, bottom = _parse_numbers(element, *edges)
    return (element.findtext("name") or "").strip(), (left, top, right, bottom)


def _parse_size(element: ElementTree.Element | None) -> tuple[float, float] | None:
    width, height = (0, 0) if element is None else _parse_numbers(element, "width", "height")
    return (width, height) if width > 0 and height > 0 else None


def _fit_box(
    box: Box, annotated: tuple[float, float] | None, photo: tuple[int, int], file: Path
) -> Box:
    """Convert a box to pixels of the photo, which may be smaller than when it was annotated."""
    width, height = annotated or photo
    is_turned = abs(photo[0] / photo[1] - height / width) < 0.01
    if is_turned and abs(photo[0] / photo[1] - width / height) > 0.01:
        raise WhenceError(f"The boxes in '{file}' were drawn on the photo before it was turned.")
    across, down = photo[0] / width, photo[1] / height
    left, top = max(box[0] * across, 0.0), max(box[1] * down, 0.0)
    right, bottom = min(box[2] * across, float(photo[0])), min(box[3] * down, float(photo[1]))
    if left >= right or top >= bottom:
        raise WhenceError(f"A box in '{file}' is empty or lies outside the photo.")
    return left, top, right, bottom


def _find_photo_folder(path: Path, split: str | None) -> Path | None:
    splits = ("val", "validation", "train") if split is None else (split,)
    candidates = [folder for one in splits for folder in list_split_folders(path, one)]
    if split is None:
        candidates += [path / "images", path / "JPEGImages"]
    return folders.find_first_folder(candidates)


def _find_annotation_folder(path: Path, split: str | None) -> Path | None:
    roots = [path / "Annotations", path / "annotations", path / "ILSVRC" / "Annotations"]
    folder = folders.find_first_folder(roots)
    if folder is None or split is None:
        return folder
    # Only to look at fewer files: each is matched to its photo by name.
    return folders.find_first_folder([folder / "CLS-LOC" / split, folder / split]) or folder
