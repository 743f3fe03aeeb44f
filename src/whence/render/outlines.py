"""Lines over a photo: outlines of peak regions, and where explained targets lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PIL import Image, ImageDraw

from whence._util.outlines import Point, trace_outlines
from whence.explanation.regions import PeakRegion
from whence.targets import TargetArea

# A line is this share of the picture's shorter side, and at least two pixels.
_LINE = 1 / 140
# The radius of the ring around one place is at least this share of the shorter side.
_RING = 1 / 28
_REGION, _AREA = "white", "#b8f400"


def draw_outlines(image: Image.Image, regions: Iterable[PeakRegion]) -> Image.Image:
    """Draw the outlines of regions over a picture of what the model saw, of any size.

    Args:
        image: The photo as the model saw it, with or without a map on it.
        regions: As `Explanation.regions` gives them.

    Returns:
        A new picture: white lines, dark on both sides so that they show on any ground.
    """
    drawn = image.convert("RGB")
    _draw_lines(drawn, [one for region in regions for one in trace_outlines(region.mask)], _REGION)
    return drawn


def draw_areas(image: Image.Image, areas: Sequence[TargetArea]) -> Image.Image:
    """Draw where targets lie over a picture of what the model saw, of any size.

    Args:
        image: The photo as the model saw it, with or without a map on it.
        areas: Boxes and masks get their outlines, single places a ring.

    Returns:
        A new picture: yellow-green lines, dark on both sides so that they show on any ground.
    """
    drawn = image.convert("RGB")
    for area in areas:
        if area.kind == "place":
            _draw_ring(drawn, area)
        else:
            _draw_lines(drawn, area.outlines, _AREA)
    return drawn


def _draw_lines(image: Image.Image, outlines: Iterable[list[Point]], color: str) -> None:
    pen, width = ImageDraw.Draw(image), _choose_width(image)
    listed = list(outlines)
    for ink, wide in (("#1a1a1a", width + 2), (color, width)):
        for outline in listed:
            places = [_place(point, image.size, width) for point in outline]
            # Two corners more, so that the last corner is joined as all others are.
            pen.line([*places, *places[:2]], ink, wide, joint="curve")


def _draw_ring(image: Image.Image, area: TargetArea) -> None:
    """Draw a ring around a place, which itself may be smaller than a pixel."""
    pen, width = ImageDraw.Draw(image), _choose_width(image)
    left, top, right, bottom = area.bounds
    x, y = (left + right) / 2 * image.width, (top + bottom) / 2 * image.height
    half = max((right - left) * image.width, (bottom - top) * image.height) / 2
    radius = max(half, _RING * min(image.size))
    for ink, wide, more in (("#1a1a1a", width + 2, 1), (_AREA, width, 0)):
        reach = radius + more
        pen.ellipse((x - reach, y - reach, x + reach, y + reach), outline=ink, width=wide)


def _choose_width(image: Image.Image) -> int:
    return max(2, round(_LINE * min(image.size)))


def _place(point: Point, size: tuple[int, int], margin: int) -> Point:
    """The pixel of a point; what lies on the edge is moved inside, where it can be seen."""
    x, y = (
        min(max(share * side, margin), side - 1 - margin)
        for share, side in zip(point, size, strict=True)
    )
    return x, y
