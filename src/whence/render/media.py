"""Videos and sounds as pictures: frames in rows, waveforms, spectrograms."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from whence.explanation.media import Media, Spectrogram, Video, Waveform

if TYPE_CHECKING:
    from whence.explanation import Explanation

# Width divided by height of the strip that shows a signal.
STRIP = 6
# Pixels between the frames of a video, and how many stand side by side.
BETWEEN, FRAMES_IN_A_ROW = 4, 8
_WIDEST, _NARROWEST = 8.0, 2.0  # width divided by height of a spectrogram
_GROUND, _INK = "#ffffff", "#3d4663"


def name_media(media: Media) -> str:
    """What a picture of it shows."""
    if isinstance(media, Video):
        return "Frames (contrast stretched)" if media.is_stretched else "Frames"
    return "Waveform" if isinstance(media, Waveform) else "Spectrogram"


def list_frames(video: Video, count: int) -> list[Image.Image]:
    """One frame for each of so many equal parts of a video: that in the middle of each."""
    frames = video.frames
    middles = [int((number + 0.5) * len(frames) / count) for number in range(count)]
    return [Image.fromarray(frames[middle]) for middle in middles]


def place_frames(count: int, size: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """Left, top, width and height of frames in a picture: in rows, from left to right."""
    columns = min(count, FRAMES_IN_A_ROW)
    rows = ceil(count / columns)
    lefts, tops = (
        np.linspace(0, side + BETWEEN, parts + 1).round().astype(int).tolist()
        for side, parts in zip(size, (columns, rows), strict=True)
    )
    for number in range(count):
        row, column = divmod(number, columns)
        width, height = lefts[column + 1] - lefts[column], tops[row + 1] - tops[row]
        yield lefts[column], tops[row], max(1, width - BETWEEN), max(1, height - BETWEEN)


def join_frames(video: Video, count: int, size: tuple[int, int]) -> Image.Image:
    """So many frames of a video as one picture, in rows."""
    canvas = Image.new("RGB", size, "white")
    frames, places = list_frames(video, count), place_frames(count, size)
    for frame, (left, top, *sides) in zip(frames, places, strict=True):
        drawn = frame.resize((sides[0], sides[1]), Image.Resampling.LANCZOS)
        canvas.paste(drawn, (left, top))
    return canvas


def find_shape(explanation: Explanation, media: Media | None) -> tuple[int, int]:
    """Height and width of a map as a picture, as far as their proportions go."""
    grid = explanation.grid or (1, 1)
    if isinstance(media, Spectrogram):
        ratio = media.length / len(media.values)
        return 100, round(100 * min(max(ratio, _NARROWEST), _WIDEST))
    if len(grid) == 1:
        return 1, STRIP
    height, width = explanation.image_size or grid[-2:]
    if "frequency" in explanation.axes:
        return 100, 300
    if len(grid) == 2:
        return height, width
    columns = min(grid[0], FRAMES_IN_A_ROW)
    return height * ceil(grid[0] / columns), width * columns


def draw_sound(media: Waveform | Spectrogram, size: tuple[int, int]) -> Image.Image:
    """The picture of a waveform or a spectrogram: time to the right, low frequencies below."""
    return _draw_waveform(media, size) if isinstance(media, Waveform) else _draw_bins(media, size)


def describe_time(media: Media | None) -> tuple[str, str]:
    """What stands at the start and at the end of the axis of time; empty of videos."""
    if media is None or isinstance(media, Video):
        return "", ""
    if media.seconds is not None:
        return "0 s", f"{media.seconds:.3g} s"
    unit = "values" if isinstance(media, Waveform) else "steps"
    return "start", f"{media.length} {unit}"


def _draw_waveform(wave: Waveform, size: tuple[int, int]) -> Image.Image:
    width, height = size
    image = Image.new("RGB", size, _GROUND)
    draw = ImageDraw.Draw(image)
    largest = max(float(np.abs(wave.lows).max()), float(np.abs(wave.highs).max()), 1e-12)
    count = len(wave.lows)
    middles = (np.arange(count) + 0.5) * width / count
    tops, bottoms = (height * (0.5 - 0.46 * of / largest) for of in (wave.highs, wave.lows))
    thick = max(1, round(height / 160))
    # From the lowest to the highest value of each column, and on to the next.
    outline = np.stack([middles, tops, middles, bottoms], 1).reshape(-1, 2)
    draw.line([(x, y) for x, y in outline.tolist()], _INK, thick)
    return image


def _draw_bins(spectrogram: Spectrogram, size: tuple[int, int]) -> Image.Image:
    """Grey from the quietest to the loudest; a few extreme values are cut off."""
    values = spectrogram.values[::-1]
    low, high = np.percentile(values, (1, 99.5))
    shares = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    image = Image.fromarray(np.round(255 * (1 - 0.9 * shares)).astype(np.uint8)).convert("RGB")
    return image.resize(size, Image.Resampling.BICUBIC)
