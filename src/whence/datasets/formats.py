"""The registry of dataset formats, and loading of a dataset whose format is recognized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from whence._util.files import exists, is_folder
from whence._util.near_names import suggest_names, suggest_paths
from whence.datasets import (
    csv_texts,
    eraser,
    funnybirds,
    imagenet,
    imagenet_boxes,
    imagenet_s,
    imagenet_segmentation,
    masks,
    pets,
    photo_folder,
)
from whence.datasets.base import Dataset
from whence.datasets.folders import list_entries
from whence.errors import WhenceError

_IMAGENET = "https://www.image-net.org/download.php"


@dataclass(frozen=True)
class DatasetFormat:
    """A layout of files in which datasets are published."""

    layout: str  # its files and folders, in words
    source: str  # where to get such a dataset
    has_layout: Callable[[Path], bool]
    open: Callable[[Path, str | None], Dataset]  # opens a split of the dataset at a path


def _make_format(module: ModuleType, layout: str, source: str) -> DatasetFormat:
    return DatasetFormat(layout, source, module.has_layout, module.open_dataset)


# In the order in which they are tried: the most specific layout first.
FORMATS: dict[str, DatasetFormat] = {
    "imagenet_segmentation": _make_format(
        imagenet_segmentation,
        "gtsegs_ijcv.mat",
        "http://calvin-vision.net/bigstuff/proj-imagenet/data/gtsegs_ijcv.mat",
    ),
    "imagenet_s": _make_format(
        imagenet_s,
        "validation/CLASS/*.JPEG and validation-segmentation/CLASS/*.png",
        "https://github.com/LUSSeg/ImageNet-S",
    ),
    "funnybirds": _make_format(
        funnybirds,
        "classes.json, dataset_test.json, test/ and test_part_map/",
        "https://github.com/visinf/funnybirds-framework",
    ),
    "eraser": _make_format(
        eraser, "test.jsonl and docs/ or docs.jsonl", "https://www.eraserbenchmark.com"
    ),
    "pets": _make_format(
        pets, "images/ and annotations/trimaps/", "https://www.robots.ox.ac.uk/~vgg/data/pets/"
    ),
    "masks": _make_format(masks, "images/ and masks/", "photos of your own"),
    "imagenet_boxes": _make_format(
        imagenet_boxes, "val/ and Annotations/ with XML files", _IMAGENET
    ),
    "imagenet": _make_format(imagenet, "val/CLASS/*.JPEG", _IMAGENET),
    "csv": _make_format(
        csv_texts,
        "a .csv or .tsv with a column text, sentence, review or prompt",
        "texts of your own, or SST-2 of https://gluebenchmark.com",
    ),
    "photos": _make_format(photo_folder, "photos, with a labels.csv or none", "photos of your own"),
}


def load(path: str | Path, format: str | None = None, split: str | None = None) -> Dataset:
    """Load a dataset from this machine.

    Args:
        path: The folder, or for a dataset of one file, the file.
        format: One of `FORMATS`; without it, the layout of the files decides.
        split: The name of a split; without it, a dataset with splits gives the one to test on.

    Raises:
        WhenceError: There is nothing at the path, or no dataset in a known layout.
    """
    path = Path(path).expanduser()
    if format is not None and format not in FORMATS:
        near = suggest_names(format, FORMATS)
        raise WhenceError(f"There is no format '{format}'.{near} There are {', '.join(FORMATS)}.")
    if not exists(path):
        near = suggest_paths(path) or f" Datasets: {_describe_sources(format)}."
        raise WhenceError(f"'{path}' is not there, or may not be read.{near}")
    if is_folder(path) and not list_entries(path):
        raise WhenceError(f"The folder '{path}' is empty; {_describe_sources(format)}.")
    name = format or next((name for name, one in FORMATS.items() if one.has_layout(path)), None)
    if name is None:
        problem = f"'{path}' is laid out as no dataset that is known"
        raise WhenceError(f"{problem}; {_describe_sources()}.")
    dataset = FORMATS[name].open(path, split)
    if not dataset.list_names():
        raise WhenceError(f"The dataset at '{path}' holds no sample; {_describe_sources(name)}.")
    return dataset


def _describe_sources(name: str | None = None) -> str:
    formats = {name: FORMATS[name]} if name is not None else FORMATS
    items = (f"{key} ({one.layout}; {one.source})" for key, one in formats.items())
    return f"whence reads {'; '.join(items)}"
