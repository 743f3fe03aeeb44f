"""An explained video as an animated GIF: each frame beside its maps."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from PIL import Image

from whence.errors import WhenceError
from whence.explanation import Photo
from whence.explanation.media import Video
from whence.render.colors import Theme, get_theme
from whence.render.drawing import Figure, Picture
from whence.render.maps import ClassMap, MapPainter, list_maps, make_painter
from whence.render.media import name_media
from whence.render.overlay import draw_ramp
from whence.render.panels import (
    Caption,
    Legend,
    Panel,
    describe_scale,
    format_origin,
    lay_out_panels,
)

if TYPE_CHECKING:
    from whence.explanation import Explanation

# Seconds that all frames take together, and the fewest and most milliseconds of one.
_SECONDS, _FASTEST, _SLOWEST = 3.0, 60, 250
_SIDE, _WIDEST, _TALLEST = 220.0, 360.0, 300.0
_SCALE = 1.25
# Frames from which the colours of the file are chosen.
_SAMPLES = 4


def encode_gif(
    explanation: Explanation, sample: int = 0, *, theme: str = "light", title: str | None = None
) -> bytes:
    """The content of an animated GIF: every frame of a video beside the maps of all classes.

    Args:
        explanation: Of videos.
        sample: Which sample of the batch.
        theme: "light" or "dark".
        title: A line above.

    Raises:
        WhenceError: The explanation is of no video, or does not know it.
    """
    maps = list_maps(explanation, sample) if len(explanation.grid or ()) == 3 else []
    if not maps:
        raise WhenceError("A .gif is for videos, and this explanation is of none; save a .png.")
    painter = make_painter(explanation, sample, maps)
    if not isinstance(painter.media, Video):
        raise WhenceError("The frames of the video are not known, so no .gif can be drawn of them.")
    legend = Legend(
        [painter.colors],
        describe_scale([one.strength for one in maps], [painter.colors.diverging]),
        format_origin([explanation]),
    )
    look, frames = get_theme(theme), painter.media.frames
    drawn = [
        _draw_frame(painter, maps, number, look, legend, title).to_image(_SCALE)
        for number in range(len(frames))
    ]
    duration = min(max(round(1000 * _SECONDS / len(frames)), _FASTEST), _SLOWEST)
    return _encode(drawn, draw_ramp(painter.colors, drawn[0].size), duration)


def _draw_frame(
    painter: MapPainter,
    maps: list[ClassMap],
    number: int,
    look: Theme,
    legend: Legend,
    title: str | None,
) -> Figure:
    """One frame beside its part of each map."""
    assert isinstance(painter.media, Video)
    frames = painter.media.frames
    image = Image.fromarray(frames[number])
    one_photo = replace(painter, photo=Photo.from_crop(image), media=None)
    width, height = one_photo.fit(_SIDE, _WIDEST, _TALLEST)
    name = f"Frame {number + 1} of {len(frames)}"
    picture = Picture(0, 0, width, height, one_photo.draw_photo, name, is_photo=True)
    note = name_media(painter.media).removeprefix("Frames").strip()
    panels = [Panel(Caption(name, note=note), picture)]
    for one in maps:
        part = replace(one, shares=one.shares[number * len(one.shares) // len(frames)])
        picture = replace(picture, draw=partial(one_photo.draw, part))
        panels.append(Panel(Caption.from_class(one.explained), picture))
    return lay_out_panels(panels, look, legend, title)


def _encode(frames: list[Image.Image], ramp: Image.Image, duration: int) -> bytes:
    """Frames as a GIF that repeats; all have the same colours, so that nothing flickers.

    A GIF has 256 of them: they are chosen from some of the frames, and from those of the legend.
    """
    chosen = [ramp, *frames[:: max(1, len(frames) // _SAMPLES)][:_SAMPLES]]
    width, height = frames[0].size
    sheet = Image.new("RGB", (width, height * len(chosen)))
    for number, frame in enumerate(chosen):
        sheet.paste(frame, (0, number * height))
    palette = sheet.quantize(256, Image.Quantize.MEDIANCUT)
    reduced = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    stream = io.BytesIO()
    reduced[0].save(
        stream, "GIF", save_all=True, append_images=reduced[1:], duration=duration, loop=0
    )
    return stream.getvalue()
