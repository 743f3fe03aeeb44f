"""ImageNet localisation: photos with boxes, as Pascal VOC writes them in XML.

Russakovsky et al., "ImageNet large scale visual recognition challenge", IJCV 2015.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from whence.datasets.classes import Classes
from whence.datasets.folders import (
    files_below,
    first_folder,
    photos_in,
    relative,
    size_of,
    subfolders,
)
from whence.datasets.imagenet import split_folders
from whence.datasets.listed import Listed
from whence.datasets.sample import Dataset, Sample
from whence.errors import WhenceError
from whence.inputs.images import read_image

Box = tuple[float, float, float, float]
_MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Boxed:
    """A photo and the file of its boxes; several files if their names do not tell which."""

    photo: Path
    annotations: tuple[Path, ...]


@dataclass(frozen=True)
class Annotation:
    """What an XML file says: the size of the photo, and the name and place of each object."""

    size: tuple[float, float] | None
    objects: tuple[tuple[str, Box], ...]


def recognises(path: Path) -> bool:
    """Whether there are photos, and XML files among the annotations."""
    annotations = _annotation_folder(path, None)
    if annotations is None or _photo_folder(path, None) is None:
        return False
    return next(files_below(annotations, ".xml"), None) is not None


def open_dataset(path: Path, split: str | None) -> Dataset:
    """The photos that have boxes.

    Raises:
        WhenceError: The photos or the boxes are not there, or do not belong together.
    """
    photos, annotations = _photo_folder(path, split), _annotation_folder(path, split)
    if photos is None or annotations is None:
        missing = "photos" if photos is None else "folder 'Annotations'"
        raise WhenceError(f"'{path}' has no {missing}{f' of a split {split!r}' if split else ''}.")
    files = defaultdict(list)
    for file in files_below(annotations, ".xml"):
        files[file.stem].append(file)
    records = {}
    for photo in photos_in(photos, deep=True):
        found = files.get(photo.stem, [])
        near = [file for file in found if file.parent.name == photo.parent.name]
        if found:
            chosen = near if len(near) == 1 else sorted(found)
            records[relative(photo, photos)] = Boxed(photo, tuple(chosen))
    if not records:
        raise WhenceError(f"No photo in '{photos}' has an XML file of its name in '{annotations}'.")
    name = "imagenet_boxes" if split is None else f"imagenet_boxes-{split}"
    classes = Classes(photos, [folder.name for folder in subfolders(photos)])
    return Boxes(name, records, classes)


class Boxes(Listed[Boxed]):
    """Photos with the boxes of the objects of their class."""

    def __init__(self, name: str, records: dict[str, Boxed], classes: Classes) -> None:
        super().__init__(name, records)
        self._classes = classes

    def _sample(self, name: str, record: Boxed) -> Sample:
        if len(record.annotations) > 1:
            raise WhenceError(f"Several XML files have the name of the photo '{name}'.")
        file = record.annotations[0]
        annotation = read_annotation(file)
        if not annotation.objects:
            raise WhenceError(f"'{file}' has no box.")
        photo = read_image(record.photo)
        wnid = annotation.objects[0][0]
        boxes = (box for one, box in annotation.objects if one == wnid)
        placed = tuple(_placed(box, annotation.size, photo.size, file) for box in boxes)
        return Sample(name, photo, self._classes.label(wnid), boxes=placed)

    def _facts(self, record: Boxed) -> list[Any]:
        # The boxes themselves: another number is mostly as long. These files are small.
        contents = [hashlib.sha256(_content(file)).hexdigest() for file in record.annotations]
        return [size_of(record.photo), *contents]


def read_annotation(file: Path) -> Annotation:
    """The boxes in an XML file of Pascal VOC.

    Raises:
        WhenceError: It is damaged, or says what no such file needs to say.
    """
    content = _content(file)
    # Entities can grow without bound or name other files; the format has none.
    if b"<!DOCTYPE" in content.replace(b"\0", b""):
        raise WhenceError(f"'{file}' has a DOCTYPE, which a file of boxes does not need.")
    try:
        root = ElementTree.fromstring(content)
        size = root.find("size")
        objects = [((one.findtext("name") or "").strip(), _box(one)) for one in root.iter("object")]
        return Annotation(_size(size) if size is not None else None, tuple(objects))
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        raise WhenceError(f"'{file}' is not a file of boxes as Pascal VOC has them.") from error


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise WhenceError(f"'{file}' cannot be read: {error.strerror}.") from error
    if len(content) > _MOST_BYTES:
        raise WhenceError(f"'{file}' is too large for a file of boxes.")
    return content


def _number(element: ElementTree.Element, path: str) -> float:
    number = float(element.findtext(path) or "")
    if not math.isfinite(number):
        raise ValueError(path)
    return number


def _box(element: ElementTree.Element) -> Box:
    left, top, right, bottom = (
        _number(element, f"bndbox/{edge}") for edge in ("xmin", "ymin", "xmax", "ymax")
    )
    return left, top, right, bottom


def _size(element: ElementTree.Element) -> tuple[float, float] | None:
    width, height = _number(element, "width"), _number(element, "height")
    return (width, height) if width > 0 and height > 0 else None


def _placed(
    box: Box, annotated: tuple[float, float] | None, photo: tuple[int, int], file: Path
) -> Box:
    """The box in pixels of the photo, which may have been made smaller since."""
    width, height = annotated or photo
    turned = abs(photo[0] / photo[1] - height / width) < 0.01
    if turned and abs(photo[0] / photo[1] - width / height) > 0.01:
        raise WhenceError(f"The boxes in '{file}' were drawn on the photo before it was turned.")
    across, down = photo[0] / width, photo[1] / height
    left, top = max(box[0] * across, 0.0), max(box[1] * down, 0.0)
    right, bottom = min(box[2] * across, float(photo[0])), min(box[3] * down, float(photo[1]))
    if left >= right or top >= bottom:
        raise WhenceError(f"A box in '{file}' is empty or lies outside the photo.")
    return left, top, right, bottom


def _photo_folder(path: Path, split: str | None) -> Path | None:
    splits = ("val", "validation", "train") if split is None else (split,)
    candidates = [folder for one in splits for folder in split_folders(path, one)]
    if split is None:
        candidates += [path / "images", path / "JPEGImages"]
    return first_folder(candidates)


def _annotation_folder(path: Path, split: str | None) -> Path | None:
    folder = first_folder(
        [path / "Annotations", path / "annotations", path / "ILSVRC" / "Annotations"]
    )
    if folder is None or split is None:
        return folder
    # Only to look at fewer files: names tell which photo one belongs to.
    return first_folder([folder / "CLS-LOC" / split, folder / split]) or folder
