"""Prepared photos in files, by which processes hand them over.

A pipe would pass pixels in pieces of some kilobytes, each of which would take a turn of the thread
that keeps a GPU busy. A file is mapped at once, and a photo that is drawn elsewhere stays there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from uuid import uuid4

import torch
from PIL import Image
from torch import Tensor

from whence.explanation import Photo
from whence.explanation.photo import Box
from whence.models import PreparedBatch


class StoredPhoto(Photo):
    """A photo whose pixels stay in a file until they are asked for.

    Args:
        path: The file.
        start: Where its bytes begin there, three for each pixel.
        size: Width and height.
        box: What the model saw of it.
    """

    path: Path
    start: int
    size: tuple[int, int]

    def __init__(self, path: Path, start: int, size: tuple[int, int], box: Box) -> None:
        vars(self).update(path=path, start=start, size=size, box=box)

    @cached_property
    def image(self) -> Image.Image:
        """The whole photo."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            return Image.frombytes("RGB", self.size, file.read(3 * prod(self.size)))

    def discard(self) -> None:
        """Remove the file, when the photo is drawn."""
        with suppress(OSError):
            self.path.unlink()


@dataclass(frozen=True)
class StoredBatch:
    """A photo that is prepared for a model: a file of the model's pixels, then of the photo's."""

    photo: StoredPhoto
    shape: tuple[int, ...]  # of the model's pixels
    dtype: torch.dtype
    notes: list[list[str]]

    @classmethod
    def write(cls, prepared: PreparedBatch, folder: Path) -> StoredBatch:
        """Store a batch of one photo in a new file of a folder."""
        assert isinstance(prepared.inputs, Tensor)
        assert prepared.photos is not None
        pixels, (photo,) = prepared.inputs.contiguous(), prepared.photos
        path = folder / uuid4().hex
        with path.open("wb") as file:
            start = file.write(pixels.reshape(-1).view(torch.uint8).numpy().data)
            file.write(photo.image.tobytes())
        stored = StoredPhoto(path, start, photo.image.size, photo.box)
        return cls(stored, tuple(pixels.shape), pixels.dtype, prepared.notes)

    def open(self) -> PreparedBatch:
        """Map the model's pixels into memory."""
        path, count = str(self.photo.path), prod(self.shape)
        pixels = torch.from_file(path, shared=False, size=count, dtype=self.dtype)
        return PreparedBatch(pixels.reshape(self.shape), self.notes, photos=[self.photo])
