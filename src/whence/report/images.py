"""Photos and maps as data URIs, small enough that a thousand fit into a page."""

from __future__ import annotations

import io

from PIL import Image

from whence._util.text import data_uri
from whence.render.colors import Floats
from whence.render.overlay import (
    prepare_map,
    quantize,
    tabulate_colors,
    tabulate_opacities,
    to_rgb,
    upsample,
)

# Shown about 200 pixels wide, on screens that are up to twice as fine.
_SIDE = 288
_QUALITY = 78
# Browsers enlarge a map without creases only if it is not too small; its file stays small.
_MAP_SIDE = 56
# A strip is shown squeezed rather than a pixel high.
_MOST_PROPORTION = 3.0


def encode_photo(image: Image.Image) -> str:
    """A photo as the data URI of a small JPEG."""
    small = to_rgb(image)
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=_QUALITY, optimize=True)
    return data_uri(file.getvalue(), "image/jpeg")


def encode_map(scores: Floats) -> str:
    """A map, (rows, columns), as the data URI of a PNG to lie over the photo.

    It is transparent where scores are low; the page chooses how opaque the rest is.
    """
    shares, colors = prepare_map(scores)
    larger = max(1.0, _MAP_SIDE / max(scores.shape))
    rows, columns = (max(1, round(side * larger)) for side in scores.shape)
    picture = Image.fromarray(quantize(upsample(shares, (columns, rows)), colors))
    picture.putpalette(tabulate_colors(colors).tobytes())
    file = io.BytesIO()
    opacities = tabulate_opacities(colors, 1.0).tobytes()
    picture.save(file, "PNG", optimize=True, transparency=opacities)
    return data_uri(file.getvalue(), "image/png")


def bound_aspect_ratio(image: Image.Image) -> float:
    """Width divided by height, within bounds that can be shown."""
    return min(max(image.width / image.height, 1 / _MOST_PROPORTION), _MOST_PROPORTION)
