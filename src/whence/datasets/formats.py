"""The formats of datasets that whence reads, and the choice of the format of a folder."""

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
class DatasetFormat:
    """A format in which datasets are published.

    Attributes:
        layout: The files of the format, in words.
        source: Where to get such a dataset.
        has_layout: Whether a file or folder is of the format.
        open: Opens the dataset at a path, or one split of it.
    """

    layout: str
    source: str
    has_layout: Callable[[Path], bool]
    open: Callable[[Path, str | None], Dataset]


def _make_format(layout: str, source: str, module: ModuleType) -> DatasetFormat:
    return DatasetFormat(layout, source, module.has_layout, module.open_dataset)


# In the order in which they are tried: the more specific first.
FORMATS: dict[str, DatasetFormat] = {
    "imagenet_segmentation": _make_format(
        "gtsegs_ijcv.mat",
        "http://calvin-vision.net/bigstuff/proj-imagenet/data/gtsegs_ijcv.mat",
        imagenet_segmentation,
    ),
    "eraser": _make_format(
        "test.jsonl and docs/ or docs.jsonl", "https://www.eraserbenchmark.com", eraser
    ),
    "pets": _make_format(
        "images/ and annotations/trimaps/", "https://www.robots.ox.ac.uk/~vgg/data/pets/", pets
    ),
    "masks": _make_format("images/ and masks/", "photos of your own", masks),
    "imagenet_boxes": _make_format(
        "val/ and Annotations/ with XML files",
        "https://www.image-net.org/download.php",
        imagenet_boxes,
    ),
    "imagenet": _make_format(
        "val/CLASS/*.JPEG", "https://www.image-net.org/download.php", imagenet
    ),
    "csv": _make_format(
        "a .csv or .tsv with a column text, sentence or review",
        "texts of your own, or SST-2 of https://gluebenchmark.com",
        csv_texts,
    ),
}


def load(path: str | Path, format: str | None = None, split: str | None = None) -> Dataset:  # noqa: A002
    """Open a dataset on this machine.

    Args:
        path: Its folder; or its file, for those that are one file.
        format: One of `FORMATS`; without it, the first whose layout fits.
        split: Which part, for datasets that have parts; without it, the one to test on.

    Raises:
        WhenceError: Nothing is there, or nothing that is laid out as a known dataset.
    """
    path = Path(path).expanduser()
    if format is not None and format not in FORMATS:
        raise WhenceError(f"There is no format '{format}'; there are {', '.join(FORMATS)}.")
    if not exists(path):
        raise WhenceError(
            f"'{path}' is not there, or may not be read; {_describe_sources(format)}."
        )
    if is_folder(path) and _is_empty(path):
        raise WhenceError(f"The folder '{path}' is empty; {_describe_sources(format)}.")
    if format is None:
        format = next((name for name, one in FORMATS.items() if one.has_layout(path)), None)  # noqa: A001
        if format is None:
            raise WhenceError(
                f"'{path}' is laid out as no dataset that is known; {_describe_sources()}."
            )
    dataset = FORMATS[format].open(path, split)
    if not dataset.list_names():
        raise WhenceError(f"The dataset at '{path}' holds no sample; {_describe_sources(format)}.")
    return dataset


def _is_empty(folder: Path) -> bool:
    try:
        return all(entry.name.startswith(".") for entry in folder.iterdir())
    except OSError as error:
        raise WhenceError(f"The folder '{folder}' cannot be read: {error.strerror}.") from error


def _describe_sources(name: str | None = None) -> str:
    chosen = {name: FORMATS[name]} if name is not None else FORMATS
    formats = "; ".join(f"{key} ({one.layout}; {one.source})" for key, one in chosen.items())
    return f"whence reads {formats}"
