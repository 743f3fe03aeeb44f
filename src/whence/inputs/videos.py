"""Read videos: animated pictures, folders of frames, arrays; no library of video is needed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from whence._util.files import check_is_file, is_folder
from whence._util.text import first_line
from whence.errors import WhenceError
from whence.inputs.images import IMAGES, image_from_array, read_image, to_rgb

# Pictures that may move.
ANIMATED = frozenset(".gif .webp .png .apng".split())
# Videos that whence does not read, which have frames all the same.
OTHER_VIDEOS = frozenset(".avi .m4v .mkv .mov .mp4 .mpeg .mpg .webm .wmv".split())
# Models read up to a few dozen frames; of longer videos, so many are kept, evenly spaced.
MAX_FRAMES = 256


@dataclass(frozen=True)
class VideoClip:
    """The frames of a video, in order; all RGB and of one size.

    Attributes:
        frames: The frames, of a long video some of them.
        count: How many the video has.
    """

    frames: list[Image.Image]
    count: int

    @classmethod
    def from_frames(cls, frames: Sequence[Image.Image], count: int | None = None) -> VideoClip:
        """Make a video of frames.

        Raises:
            WhenceError: There are fewer than two, or their sizes differ.
        """
        if len(frames) < 2:
            raise WhenceError("A video has two frames or more, and this has one: it is a photo.")
        sizes = sorted({one.size for one in frames})
        if len(sizes) > 1:
            first, last = (f"{width}x{height}" for width, height in (sizes[0], sizes[-1]))
            raise WhenceError(
                f"The frames of a video are of one size; these are {first} to {last}."
            )
        return cls([to_rgb(one) for one in frames], count or len(frames))


def read_video(path: str | Path) -> VideoClip:
    """Read a folder of frames, which are sorted by name, or a picture that moves.

    Raises:
        WhenceError: It is neither, or damaged.
    """
    path = Path(path)
    if is_folder(path):
        return _read_folder(path)
    if path.suffix.lower() in OTHER_VIDEOS:
        raise WhenceError(describe_other_video(path))
    check_is_file(path, "a video")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                count = int(getattr(image, "n_frames", 1))
                frames = []
                for number in choose_evenly(count, min(count, MAX_FRAMES)):
                    image.seek(number)
                    frames.append(to_rgb(image.copy()))
    except UnidentifiedImageError:
        raise WhenceError(f"'{path}' is no animated picture that Pillow knows.") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise WhenceError(f"'{path}' is damaged: {first_line(error)}.") from error
    try:
        return VideoClip.from_frames(frames, count)
    except WhenceError as error:
        raise WhenceError(f"'{path}': {error}") from None


def video_from_array(array: np.ndarray[Any, Any]) -> VideoClip:
    """Make a video of an array (frames, height, width, 3) of uint8, or floats from 0 to 1."""
    if array.ndim != 4 or array.shape[-1] not in (1, 3, 4):
        raise WhenceError(
            f"A video array is (frames, height, width, 3), not {tuple(array.shape)}. For a tensor "
            f"that is prepared for the model, use Explainer(model)."
        )
    chosen = choose_evenly(len(array), min(len(array), MAX_FRAMES))
    return VideoClip.from_frames([image_from_array(array[n]) for n in chosen], len(array))


def is_animated(path: Path) -> bool:
    """Whether a file is a picture of several frames."""
    try:
        with Image.open(path) as image:
            return int(getattr(image, "n_frames", 1)) > 1
    except Exception:
        return False


def choose_evenly(count: int, chosen: int) -> list[int]:
    """Choose so many of some frames, evenly spaced, the first and the last among them.

    Where there are fewer than that, some are taken more than once.
    """
    return [round(place) for place in np.linspace(0, count - 1, chosen).tolist()]


def describe_other_video(path: Path) -> str:
    """Say what to do with a video that whence does not read."""
    return (
        f"'{path}' is a video that whence does not read. Take its frames apart and name their "
        f"folder: mkdir frames && ffmpeg -i {path.name} frames/%05d.png"
    )


def _read_folder(folder: Path) -> VideoClip:
    try:
        files = [f for f in folder.iterdir() if f.is_file() and f.suffix.lower() in IMAGES]
    except OSError as error:
        raise WhenceError(f"The folder '{folder}' cannot be read: {error.strerror}.") from error
    files.sort(key=_sort_by_number)
    if len(files) < 2:
        raise WhenceError(
            f"The folder '{folder}' holds {len(files) or 'no'} picture(s); a video is a folder of "
            f"two or more."
        )
    chosen = choose_evenly(len(files), min(len(files), MAX_FRAMES))
    try:
        return VideoClip.from_frames([read_image(files[n]) for n in chosen], len(files))
    except WhenceError as error:
        raise WhenceError(f"The folder '{folder}': {error}") from None


def _sort_by_number(file: Path) -> list[tuple[int, str]]:
    """Sort names as people do: frame2 before frame10."""
    parts = re.split(r"(\d+)", file.name.lower())
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
