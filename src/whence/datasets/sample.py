"""One thing to explain with the truth about it, and where such things come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from whence.inputs.sources import Kind

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

Label = int | str | None


@dataclass(frozen=True, eq=False)
class Sample:
    """A photo or a text, and what people say about it.

    Attributes:
        name: Unique in the dataset and stable: a relative path or an id.
        content: An RGB photo, or the text.
        label: The true class: an index of the model's classes, or the name of one.
        mask: (height, width) uint8 of the photo: 1 object, 0 background, 255 ignored.
        boxes: (left, top, right, bottom) of each object, in pixels of the photo.
        words: The words of the text that evidence spans count.
        evidence: [start, end) in words: what people marked as reasons for the label.
    """

    name: str
    content: Image.Image | str
    label: Label = None
    mask: np.ndarray[Any, Any] | None = None
    boxes: tuple[tuple[float, float, float, float], ...] = ()
    words: tuple[str, ...] = ()
    evidence: tuple[tuple[int, int], ...] = ()


class Dataset(Protocol):
    """Samples that are listed at once and read one at a time.

    Attributes:
        name: The format, and where one format serves many datasets, which of them.
        kind: Whether its samples are photos or texts.
    """

    name: str
    kind: Kind

    def names(self) -> list[str]:
        """The names of all samples, in a fixed order, without reading them."""
        ...

    def read(self, name: str) -> Sample:
        """One sample.

        Raises:
            WhenceError: It is broken, or there is none of that name; the message names it.
        """
        ...

    def fingerprint(self) -> str:
        """A hash, in hexadecimal, of what would change results."""
        ...
