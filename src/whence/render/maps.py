"""Maps of an explained photo at any size: over what the model saw, over the whole photo, alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING

from PIL import Image

from whence.errors import WhenceError
from whence.explanation import PeakRegion, Photo
from whence.explanation.heatmaps import arrange_picture
from whence.explanation.media import Media, Video
from whence.render.colors import Colormap, Floats, get_colormap
from whence.render.media import (
    draw_sound,
    find_shape,
    join_frames,
    list_frames,
    name_media,
    place_frames,
)
from whence.render.outlines import draw_areas, draw_outlines
from whence.render.overlay import (
    blend,
    check_opacity,
    draw_map,
    is_signed,
    resize,
    stretch_contrast,
    to_rgb,
)
from whence.render.strengths import list_strengths

if TYPE_CHECKING:
    from whence.explanation import ExplainedClass, Explanation
    from whence.targets import TargetArea

Size = tuple[int, int]

# Sounds and frames that are wider than this, for their height, stand below each other.
_WIDE = 2.4
# How far what the model did not see turns grey.
_GREYED = 0.6


@dataclass(frozen=True)
class ClassMap:
    """The map of one class, ready to be drawn."""

    explained: ExplainedClass
    shares: Floats  # (rows, columns), relative scores; of a video, with frames before them
    strength: float  # of its colours, from 0 to 1
    regions: Sequence[PeakRegion] = ()  # to be outlined


@dataclass(frozen=True)
class MapPainter:
    """Draws the maps of one photo, video or sound, all in the same colours and at the same place.

    Attributes:
        photo: The photo; None if there is none, or it is not known.
        shape: Height and width of the model's input, whose proportions maps alone have; the frames
            of a video stand in rows.
        colors: The colour map.
        opacity: Of the strongest colour.
        whole: Whether maps lie on the whole photo, rather than on what the model saw.
        areas: Where targets lie, to be drawn on the photo.
    """

    photo: Photo | None
    shape: tuple[int, int]
    colors: Colormap
    opacity: float = 0.6
    whole: bool = False
    areas: Sequence[TargetArea] = ()
    media: Media | None = None  # a video or a sound; without it and a photo, maps are drawn alone
    frames: int = 1  # of a video, how many are shown
    parts: str = "Frames"  # what these are called
    _resized: dict[Size, Image.Image] = field(default_factory=dict, repr=False, compare=False)

    @property
    def has_photo(self) -> bool:
        """Whether there is something that maps are laid over."""
        return self.photo is not None or self.media is not None

    @property
    def ratio(self) -> float:
        """Width divided by height."""
        if self.photo is None:
            return self.shape[1] / self.shape[0]
        shown = self.photo.image if self.whole else self.photo.crop
        return shown.width / shown.height

    @property
    def is_wide(self) -> bool:
        """Whether pictures are strips, which stand below each other."""
        return self.photo is None and self.ratio > _WIDE

    @property
    def photo_name(self) -> str:
        """What the picture of the photo shows."""
        if self.media is not None:
            return name_media(self.media).replace("Frames", self.parts)
        is_part = self.photo is not None and self.photo.has_crop and not self.whole
        return "What the model saw" if is_part else "Photo"

    @property
    def note(self) -> str:
        """What the border is, where the model saw a part of the whole photo; otherwise empty."""
        has_border = self.whole and self.photo is not None and self.photo.has_crop
        border = "; faded border: what the model did not see" if has_border else ""
        return border + _describe_areas(self.areas)

    def fit(self, side: float, widest: float, tallest: float) -> tuple[float, float]:
        """Width and height of about the area of a square with this side, within bounds."""
        width = min(side * sqrt(self.ratio), widest, tallest * self.ratio)
        return max(1.0, float(round(width))), max(1.0, float(round(width / self.ratio)))

    def draw_photo(self, size: Size) -> Image.Image:
        """The photo without a map, and where targets lie."""
        canvas = self._resize_photo(size)
        if not self.areas:
            return canvas
        canvas = canvas.copy()  # maps are drawn on it, too
        left, top, right, bottom = self._find_seen(size) if self.whole else (0, 0, *size)
        canvas.paste(draw_areas(canvas.crop((left, top, right, bottom)), self.areas), (left, top))
        return canvas

    def _resize_photo(self, size: Size) -> Image.Image:
        """The photo at a size, which all maps have: it is resized once, and not to be changed."""
        if size not in self._resized:
            self._resized.clear()
            self._resized[size] = self._resize_photo_anew(size)
        return self._resized[size]

    def _resize_photo_anew(self, size: Size) -> Image.Image:
        if isinstance(self.media, Video):
            return join_frames(self.media, self.frames, size)
        if self.media is not None:
            return draw_sound(self.media, size)
        if self.photo is None:
            raise WhenceError("The photo is not known.")
        return resize(self.photo.image if self.whole else self.photo.crop, size)

    def draw(self, one: ClassMap, size: Size) -> Image.Image:
        """The map of a class."""
        if one.shares.ndim == 3:
            return self._draw_frames(one, size)
        if not self.has_photo:
            return _draw_lines(draw_map(one.shares, self.colors, size, one.strength), one)
        if not self.whole:
            return self._blend(self._resize_photo(size), one)
        canvas = self._resize_photo(size)
        left, top, right, bottom = self._find_seen(size)
        seen = canvas.crop((left, top, right, bottom))
        grey = Image.new("RGB", size, "#8c8c8c")
        canvas = Image.blend(canvas.convert("L").convert("RGB"), grey, _GREYED)
        canvas.paste(self._blend(seen, one), (left, top))
        return canvas

    def _draw_frames(self, one: ClassMap, size: Size) -> Image.Image:
        """The maps of frames in rows, over the frames where they are known."""
        canvas = Image.new("RGB", size, "white")
        count = len(one.shares)
        known = list_frames(self.media, count) if isinstance(self.media, Video) else [None] * count
        places = place_frames(count, size)
        for shares, frame, (left, top, *sides) in zip(one.shares, known, places, strict=True):
            drawn = (
                draw_map(shares, self.colors, (sides[0], sides[1]), one.strength)
                if frame is None
                else blend(
                    resize(frame, (sides[0], sides[1])),
                    shares,
                    self.colors,
                    self.opacity,
                    one.strength,
                )
            )
            canvas.paste(drawn, (left, top))
        return canvas

    def _blend(self, photo: Image.Image, one: ClassMap) -> Image.Image:
        return _draw_lines(blend(photo, one.shares, self.colors, self.opacity, one.strength), one)

    def _find_seen(self, size: Size) -> tuple[int, int, int, int]:
        """The part that the model saw, in pixels of the whole photo at another size."""
        assert self.photo is not None
        scales = (size[0] / self.photo.image.width, size[1] / self.photo.image.height)
        left, top, right, bottom = (
            round(side * scale)
            for side, scale in zip(self.photo.box, (*scales, *scales), strict=True)
        )
        return left, top, max(right, left + 1), max(bottom, top + 1)


def _describe_areas(areas: Sequence[TargetArea]) -> str:
    """What lines around targets show; empty if there are none."""
    boxes = sum(area.kind == "box" for area in areas)
    places = len(areas) - boxes
    if places == 1 and all(area.kind != "mask" for area in areas):
        found = ["the place"]
    else:
        found = ["the places"] if places else []
    found += ["the box" if boxes == 1 else "the boxes"] if boxes else []
    return f"; green: {' and '.join(found)} explained" if found else ""


def _draw_lines(image: Image.Image, one: ClassMap) -> Image.Image:
    """The picture of a class with the outlines of its peak regions, and where it lies."""
    drawn = draw_outlines(image, one.regions) if one.regions else image
    return draw_areas(drawn, [one.explained.area]) if one.explained.area else drawn


def find_photo(explanation: Explanation, sample: int, image: Image.Image | None) -> Photo | None:
    """The photo of a sample: an image as the model saw it, what the explanation knows, or None.

    Raises:
        WhenceError: An image was given, and the explanation is not of photos.
    """
    if image is not None and len(explanation.grid or ()) != 2:
        raise WhenceError("This explanation is of no photo; it cannot be laid over an image.")
    if image is not None:
        return Photo.from_crop(to_rgb(image))
    return explanation.photos[sample] if explanation.photos else None


def list_maps(explanation: Explanation, sample: int = 0, outlines: bool = False) -> list[ClassMap]:
    """The map of each explained class of a photo, a video or a signal.

    Args:
        explanation: Of photos, videos or signals.
        sample: Which sample of the batch.
        outlines: Whether maps carry their peak regions, which a painter then outlines.

    Raises:
        WhenceError: The explanation is of tokens, or there is no such sample.
    """
    grid = explanation.grid
    if grid is None:
        raise WhenceError("This explanation is of tokens, which have no map; see .words().")
    strengths = list_strengths(explanation, sample)
    return [
        ClassMap(
            one,
            arrange_picture(stretch_contrast(one.scores), grid, explanation.axes),
            strength,
            explanation.regions(sample, number) if outlines else (),
        )
        for number, (one, strength) in enumerate(
            zip(explanation.classes(sample), strengths, strict=True)
        )
    ]


def make_painter(
    explanation: Explanation,
    sample: int,
    maps: Sequence[ClassMap],
    *,
    image: Image.Image | None = None,
    whole: bool = False,
    colormap: str = "auto",
    opacity: float = 0.6,
) -> MapPainter:
    """Choose photo and colours for maps that stand beside each other."""
    photo = find_photo(explanation, sample, image)
    if whole and photo is None:
        raise WhenceError("The photo is not known, so nothing can be drawn on the whole of it.")
    colors = get_colormap(colormap, any(is_signed(one.explained.scores) for one in maps))
    areas = tuple(one.explained.area for one in maps if one.explained.area is not None)
    media = explanation.media[sample] if explanation.media and photo is None else None
    shape, frames = find_shape(explanation, media), (explanation.grid or (1,))[0]
    return MapPainter(
        photo,
        shape,
        colors,
        check_opacity(opacity),
        whole,
        areas,
        media=media,
        frames=frames,
        parts="Images" if "image" in explanation.axes else "Frames",
    )


def describe_axes(explanation: Explanation) -> str:
    """How a map that is not one of a photo is read, in a few words; empty for photos."""
    if "frequency" in explanation.axes:
        return "; time to the right, high frequencies at the top"
    parts = "images" if "image" in explanation.axes else "frames"
    order = {1: "; from the start of the signal to its end", 3: f"; {parts} from left to right"}
    return order.get(len(explanation.grid or ()), "")
