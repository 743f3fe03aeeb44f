"""PNG files of photos, encoded with as little work as their pixels allow."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from PIL import Image

# Rows that are compressed at a time: so few that they stay in the processor's cache.
_BAND = 64
_UP = 2  # the filter by which each row holds its differences from the row above
_INCH = 0.0254  # metres


def encode_photos(image: Image.Image, dpi: float) -> bytes:
    """The content of a PNG file of an RGB picture, most of which is photos.

    All rows are filtered by the row above. Pillow tries five filters for each row, which takes as
    long as all else, and files get smaller by an eighth.
    """
    per_metre = int(dpi / _INCH + 0.5)
    header = struct.pack(">IIBBBBB", *image.size, 8, 2, 0, 0, 0)  # eight bits, RGB
    packer = _make_packer()
    pixels = b"".join([*map(packer.compress, _filter_rows(image)), packer.flush()])
    density = struct.pack(">IIB", per_metre, per_metre, 1)
    chunks = {b"IHDR": header, b"pHYs": density, b"IDAT": pixels, b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(_frame(*chunk) for chunk in chunks.items())


class _Packer(Protocol):
    """Compresses bytes that come in pieces."""

    def compress(self, data: memoryview, /) -> bytes:
        """Take a piece, and give what is ready."""

    def flush(self) -> bytes:
        """Give the rest."""


def _make_packer() -> _Packer:
    """ISA-L compresses in a quarter of zlib's time; it is not made for every processor."""
    try:
        from isal import isal_zlib
    except ImportError:
        # Of zlib's ways, runs of equal bytes are the fastest for photos.
        return zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, 8, zlib.Z_RLE)
    return isal_zlib.compressobj(1)


def _filter_rows(image: Image.Image) -> Iterator[memoryview]:
    """The rows of a picture as a PNG holds them, before they are compressed."""
    width, height = image.size
    above = np.zeros(3 * width, dtype=np.uint8)
    for top in range(0, height, _BAND):
        band = image.crop((0, top, width, min(top + _BAND, height)))
        rows = np.asarray(band).reshape(-1, 3 * width)
        filtered = np.empty((len(rows), 1 + 3 * width), dtype=np.uint8)
        filtered[:, 0] = _UP
        np.subtract(rows[0], above, out=filtered[0, 1:])
        np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
        above = rows[-1]
        yield filtered.data


def _frame(name: bytes, content: bytes) -> bytes:
    """A chunk of a PNG file: its length, name, content and checksum."""
    checksum = zlib.crc32(content, zlib.crc32(name))
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)
