"""Sample and Dataset: a photo or text with its labels, and a collection of such samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image

from whence.inputs.sources import Kind

Label = int | str | None
Pixels = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Sample:
    """A photo or a text with its label, mask, boxes or evidence.

    Attributes:
        name: Unique in the dataset and stable: a relative path or an id.
        content: An RGB photo, or the text.
        label: The true class: an index of the model's classes, or the name of one.
        mask: (height, width) uint8 of the photo: 1 object, 0 background, 255 ignored.
        boxes: (left, top, right, bottom) of each object, in pixels of the photo.
        words: The words of the text that evidence spans count.
        evidence: [start, end) in words, which people marked as reasons for the label.
    """

    name: str
    content: Image.Image | str
    label: Label = None
    mask: Pixels | None = None
    boxes: tuple[tuple[float, float, float, float], ...] = ()
    words: tuple[str, ...] = ()
    evidence: tuple[tuple[int, int], ...] = ()


class Dataset(Protocol):
    """A collection of samples that are listed at once and read one at a time.

    Attributes:
        name: The format, and where one format serves many datasets, which of them.
        kind: Whether its samples are photos or texts.
    """

    name: str
    kind: Kind

    def list_names(self) -> list[str]:
        """List the names of all samples, in a fixed order, without reading them."""
        ...

    def read(self, name: str) -> Sample:
        """Read one sample.

        Raises:
            WhenceError: It is broken, or there is none of that name; the message names it.
        """
        ...

    def compute_fingerprint(self) -> str:
        """Compute a hash, in hexadecimal, that changes when results would."""
        ...
