"""Datasets: photos and texts, listed at once and read one at a time, with label and annotation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from whence.errors import WhenceError
from whence.inputs.sources import Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

Label = int | str | None
Box = tuple[float, float, float, float]  # left, top, right, bottom
Span = tuple[int, int]  # [start, end)


@dataclass(frozen=True, eq=False)
class Sample:
    """A photo or a text with its label and what people annotated."""

    name: str  # unique in the dataset and stable: a relative path or an id
    content: Image.Image | str  # an RGB photo, or the text
    label: Label = None  # the true class: an index of the model's classes, or the name of one
    mask: NDArray[np.uint8] | None = None  # (height, width): 1 object, 0 background, 255 ignored
    boxes: tuple[Box, ...] = ()  # of the objects, in pixels of the photo
    words: tuple[str, ...] = ()  # the words of the text that evidence spans count
    evidence: tuple[Span, ...] = ()  # in words: marked reasons
    answer: str = ""  # what a language model is to say after the text
    rival: str = ""  # an answer that would be wrong
    cues: tuple[Span, ...] = ()  # in characters: what the answer follows from
    passages: tuple[Span, ...] = ()  # in characters: the parts of the text that may hold a cue
    other_labels: tuple[str, ...] = ()  # the class under other names, for models that know these


class Record(Protocol):
    """The location of one sample, from which it can be read."""

    def read_sample(self, name: str) -> Sample:
        """Read the sample and give it this name."""

    def list_facts(self) -> list[object]:
        """Return what enters the fingerprint, as JSON takes it."""


class Dataset:
    """Named samples that are read one at a time.

    Args:
        name: The format, and where one format serves many datasets, which of them.
        records: The record of each sample by the sample's name, in order.
        kind: Whether the samples are photos or texts.
    """

    def __init__(self, name: str, records: Mapping[str, Record], kind: Kind = "image") -> None:
        self.name = name
        self.kind: Kind = kind
        self._records = dict(records)

    def list_names(self) -> list[str]:
        """List the names of all samples, in a fixed order, without reading them."""
        return list(self._records)

    def read(self, name: str) -> Sample:
        """Read one sample; if it is broken or missing, the error names it."""
        if name not in self._records:
            raise WhenceError(f"The dataset {self.name} has no sample '{name}'.")
        try:
            return self._records[name].read_sample(name)
        except WhenceError as error:
            if f"{name}'" in str(error):
                raise
            raise WhenceError(f"The sample '{name}' cannot be used: {error}") from error

    def announce(self, names: Sequence[str]) -> None:
        """Take note of the samples that will be read; some datasets read these at once."""

    def compute_fingerprint(self) -> str:
        """Hash the name, file sizes and label of each sample, but not its photo (SHA-256)."""
        digest = hashlib.sha256()
        for name, record in self._records.items():
            # As ASCII, since names of files need not be text.
            digest.update(json.dumps([name, *record.list_facts()]).encode() + b"\n")
        return digest.hexdigest()


def parse_label(text: str) -> Label:
    """Convert a field of a table to a class index, a class name, or None if it is empty."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 10 else text or None
