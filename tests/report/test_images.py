"""Photos and maps of the page: small, and as the library draws them."""

import base64
import io

import numpy as np
from PIL import Image

from tests.saved import make_photo
from whence import render
from whence.report.images import bound_aspect_ratio, encode_map, encode_photo


def decode_image(address: str) -> Image.Image:
    kind, _, content = address.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_maps_lie_over_photos_as_the_library_draws_them():
    """The small map, enlarged and blended as the page does it, is the library's own overlay."""
    scores = np.random.default_rng(0).random((7, 7))
    image = make_photo(224, 224)
    small = decode_image(encode_map(scores)).convert("RGBA")
    small = small.resize((224, 224), Image.Resampling.BICUBIC)
    small.putalpha(small.getchannel("A").point([round(0.6 * a) for a in range(256)]))
    muted = Image.blend(image, image.convert("L").convert("RGB"), 0.9).convert("RGBA")
    shown = np.asarray(Image.alpha_composite(muted, small).convert("RGB"), dtype=float)
    wanted = np.asarray(render.overlay(image, scores), dtype=float)
    assert np.abs(shown - wanted).mean() < 2


def test_pictures_are_small():
    large = make_photo(3000, 2000)
    address = encode_photo(large)
    assert decode_image(address).size == (288, 192)
    assert large.size == (3000, 2000)
    assert len(encode_map(np.eye(14))) < 6000
    assert decode_image(encode_map(np.random.default_rng(0).normal(size=(14, 28)))).size == (56, 28)
    assert bound_aspect_ratio(make_photo(600, 2)) == 3
    assert bound_aspect_ratio(make_photo(60, 40)) == 1.5
