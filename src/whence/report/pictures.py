"""Pictures small enough that a thousand fit into a page."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from whence.render.colors import Floats, get_colormap
from whence.render.overlay import (
    is_signed,
    quantize,
    stretch_contrast,
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


def photo_address(image: Image.Image) -> str:
    """A photo as an address that holds a small JPEG."""
    small = to_rgb(image)
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def proportion(image: Image.Image) -> float:
    """Width divided by height, within bounds that can be shown."""
    return min(max(image.width / image.height, 1 / _MOST_PROPORTION), _MOST_PROPORTION)


def map_address(scores: Floats) -> str:
    """A map, (rows, columns), as an address that holds a picture to lie over the photo.

    It is transparent where nothing was found; the page chooses how opaque the rest is.
    """
    colors = get_colormap("auto", is_signed(scores))
    larger = max(1.0, _MAP_SIDE / max(scores.shape))
    rows, columns = (max(1, round(side * larger)) for side in scores.shape)
    picture = Image.fromarray(quantize(upsample(stretch_contrast(scores), (columns, rows)), colors))
    picture.putpalette(tabulate_colors(colors).tobytes())
    file = io.BytesIO()
    alphas = np.asarray(tabulate_opacities(colors, 1.0), dtype=np.uint8)
    picture.save(file, "PNG", optimize=True, transparency=alphas.tobytes())
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
