"""PNG files of photos hold the pixels that they were made of."""

import io

import numpy as np
import pytest
from PIL import Image

from whence.render.png import encode_photos


@pytest.mark.parametrize("size", [(1, 1), (3, 64), (7, 65), (50, 200)])
def test_the_file_is_what_pillow_writes_but_for_its_compression(size):
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
