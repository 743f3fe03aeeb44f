"""Which datasets whence reads, and telling them apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from whence._util.files import exists, is_folder
from whence.datasets import (
    csv_texts,
    eraser,
    imagenet,
    imagenet_boxes,
    imagenet_segmentation,
    masks,
    pets,
)
from whence.datasets.sample import Dataset
from whence.errors import WhenceError


@dataclass(frozen=True)
class Format:
    """A layout in which datasets are published.

    Attributes:
        looks_for: What lies in the folder.
        source: Where to get it.
        recognises: Whether a file or folder is laid out so.
        open: The dataset at a path, and of it a split.
    """

    looks_for: str
    source: str
    recognises: Callable[[Path], bool]
    open: Callable[[Path, str | None], Dataset]


def _format(looks_for: str, source: str, module: ModuleType) -> Format:
    return Format(looks_for, source, module.recognises, module.open_dataset)


# The order in which they are looked for: what has more of its own comes first.
FORMATS: dict[str, Format] = {
    "imagenet_segmentation": _format(
        "gtsegs_ijcv.mat",
        "http://calvin-vision.net/bigstuff/proj-imagenet/data/gtsegs_ijcv.mat",
        imagenet_segmentation,
    ),
    "eraser": _format(
        "test.jsonl and docs/ or docs.jsonl", "https://www.eraserbenchmark.com", eraser
    ),
    "pets": _format(
        "images/ and annotations/trimaps/", "https://www.robots.ox.ac.uk/~vgg/data/pets/", pets
    ),
    "masks": _format("images/ and masks/", "photos of your own", masks),
    "imagenet_boxes": _format(
        "val/ and Annotations/ with XML files",
        "https://www.image-net.org/download.php",
        imagenet_boxes,
    ),
    "imagenet": _format("val/CLASS/*.JPEG", "https://www.image-net.org/download.php", imagenet),
    "csv": _format(
        "a .csv or .tsv with a column text, sentence or review",
        "texts of your own, or SST-2 of https://gluebenchmark.com",
        csv_texts,
    ),
}


def load(path: str | Path, format: str | None = None, split: str | None = None) -> Dataset:  # noqa: A002
    """A dataset that lies on this machine.

    Args:
        path: Its folder; or its file, for those that are one file.
        format: One of `FORMATS`; without it, whatever lies there decides.
        split: Which part, for datasets that have parts; without it, the one to test on.

    Raises:
        WhenceError: Nothing is there, or nothing that is laid out as a known dataset.
    """
    path = Path(path).expanduser()
    if format is not None and format not in FORMATS:
        raise WhenceError(f"There is no format '{format}'; there are {', '.join(FORMATS)}.")
    if not exists(path):
        raise WhenceError(f"'{path}' is not there, or may not be read; {_sources(format)}.")
    if is_folder(path) and _is_empty(path):
        raise WhenceError(f"The folder '{path}' is empty; {_sources(format)}.")
    if format is None:
        format = next((name for name, one in FORMATS.items() if one.recognises(path)), None)  # noqa: A001
        if format is None:
            raise WhenceError(f"'{path}' is laid out as no dataset that is known; {_sources()}.")
    dataset = FORMATS[format].open(path, split)
    if not dataset.names():
        raise WhenceError(f"The dataset at '{path}' holds no sample; {_sources(format)}.")
    return dataset


def _is_empty(folder: Path) -> bool:
    try:
        return all(entry.name.startswith(".") for entry in folder.iterdir())
    except OSError as error:
        raise WhenceError(f"The folder '{folder}' cannot be read: {error.strerror}.") from error


def _sources(name: str | None = None) -> str:
    chosen = {name: FORMATS[name]} if name is not None else FORMATS
    told = "; ".join(f"{key} ({one.looks_for}; {one.source})" for key, one in chosen.items())
    return f"whence reads {told}"
