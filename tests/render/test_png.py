"""PNG files of photos hold the pixels that they were made of."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from whence.render.png import encode_photos


@pytest.fixture(params=["isal", "zlib"])
def compressor(request, monkeypatch):
    """What compresses: where ISA-L is not installed, zlib does."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
    else:
        pytest.importorskip("isal")
    return request.param


@pytest.mark.parametrize("size", [(1, 1), (3, 64), (7, 65), (50, 200), (1700, 70)])
def test_the_file_is_what_pillow_writes_but_for_its_compression(size, compressor):
    width, height = size
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[: height // 2] = 255  # a part without a photo
    image, plain = Image.fromarray(pixels), io.BytesIO()
    image.save(plain, "PNG", dpi=(192, 192))
    with Image.open(io.BytesIO(encode_photos(image, 192))) as saved, Image.open(plain) as expected:
        saved.load()
        expected.load()
        assert (saved.mode, saved.info) == (expected.mode, expected.info)
        assert np.array_equal(np.asarray(saved), pixels)


def test_each_compressor_is_used_where_it_is_at_hand(compressor):
    gradient = np.arange(200 * 300 * 3, dtype=np.uint32).reshape(200, 300, 3) // 97 % 256
    content = encode_photos(Image.fromarray(gradient.astype(np.uint8)), 96)
    start = content.index(b"IDAT")
    (length,) = struct.unpack(">I", content[start - 4 : start])
    packed = content[start + 4 : start + 4 + length]
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, 8, zlib.Z_RLE)
    by_zlib = packer.compress(zlib.decompress(packed)) + packer.flush()
    assert (packed == by_zlib) == (compressor == "zlib")
