"""What an explained tensor is: a video, a waveform or a spectrogram, and the names of its axes."""

from __future__ import annotations

import inspect
from typing import NamedTuple

from PIL import Image
from torch import Tensor, nn

from whence.engine.image_tokens import find_text_beside
from whence.engine.request import Request
from whence.explanation import Photo
from whence.explanation.media import Media, Spectrogram, Video, Waveform
from whence.layout import FoundLayout
from whence.tracing import unwrap_model

# Names that models of transformers give to sounds.
_SOUNDS = ("input_values", "input_features")


class SeenInput(NamedTuple):
    """The explained input as one sees or hears it.

    Attributes:
        axes: The names of the grid's axes; empty if there is no grid.
        media: Of each sample; None of photos, of texts, and of what is none of them.
        length: Number of the input's values along the only axis of a grid.
        photos: Of each sample whose one image a language model reads; colours are stretched.
    """

    axes: tuple[str, ...] = ()
    media: list[Media] | None = None
    length: int | None = None
    photos: list[Photo] | None = None


def see_input(request: Request, layout: FoundLayout) -> SeenInput:
    """Say what the explained input is, from its name, its shape and the grid on it."""
    main, grid = request.arguments.main, layout.grid
    if grid is None:
        return SeenInput()
    model = unwrap_model(request.subject.model)
    is_sound = _find_name(request.arguments.main_at, model) in _SOUNDS
    lengths = [main.shape[1 + axis] for axis in layout.axes]
    length = lengths[0] if len(lengths) == 1 else None
    if not is_sound and find_text_beside(request) is not None:
        return _see_images(request, layout)
    if len(grid) == 3 and main.dim() == 5:
        return SeenInput(("frame", "row", "column"), _list_videos(main, layout.axes))
    if len(grid) == 1 and main.dim() == 2:
        axes = ("time",) if is_sound else ("segment",)
        return SeenInput(axes, [Waveform.from_values(one) for one in main], length)
    plane = _find_plane(main) if is_sound else None
    if plane is None:
        names = ("segment",) if len(grid) == 1 else ("frame", "row", "column")[-len(grid) :]
        return SeenInput(names, None, length)
    time = layout.axes[0] if len(grid) == 1 else _find_time(main, plane, model)
    frequency = next(axis for axis in plane if axis != time)
    names = tuple("time" if axis == time else "frequency" for axis in layout.axes)
    values = main.movedim((1 + frequency, 1 + time), (-2, -1)).reshape(
        len(main), main.shape[1 + frequency], main.shape[1 + time]
    )
    return SeenInput(names, [Spectrogram.from_values(one) for one in values], length)


def _see_images(request: Request, layout: FoundLayout) -> SeenInput:
    """The images of a language model; a video that it reads has frames."""
    main, grid = request.arguments.main, layout.grid or ()
    is_video = "video" in str(request.arguments.main_at)
    names = ("frame" if is_video else "image", "row", "column")[-len(grid) :]
    axes = layout.axes if len(grid) == 3 else (0, *layout.axes)
    if main.dim() == 6 and axes[0] == 0:  # the frames of an image are the same
        main, axes = main[:, :, 0], tuple(axis - (axis > 1) for axis in axes)
    if len(grid) == 2 and request.image_sizes is None:
        fits = main.dim() == 4 and main.shape[1] <= 4
        clips = [Video.from_pixels(one[None], is_stretched=True) for one in main if fits]
        photos = [Photo.from_crop(Image.fromarray(one.frames[0])) for one in clips]
        return SeenInput(names, photos=photos or None)
    return SeenInput(names, _list_videos(main, axes) if main.dim() == 5 else None)


def _find_name(at: str | int, model: nn.Module) -> str:
    """The name of an argument of the model's forward."""
    if isinstance(at, str):
        return at
    names = list(inspect.signature(model.forward).parameters)
    return names[at] if at < len(names) else ""


def _list_videos(main: Tensor, axes: tuple[int, ...]) -> list[Media] | None:
    channels = next(axis for axis in range(4) if axis not in axes)
    if main.shape[1 + channels] > 4:
        return None
    places = (axes[0], channels, *axes[1:])
    clips = main.permute(0, *(1 + axis for axis in places))
    return [Video.from_pixels(one, is_stretched=True) for one in clips]


def _find_plane(main: Tensor) -> tuple[int, int] | None:
    """The two dimensions, after the batch, of a spectrogram; others have a length of 1."""
    dims = list(range(main.dim() - 1))
    wide = dims if len(dims) == 2 else [axis for axis in dims if main.shape[1 + axis] > 1]
    return (wide[0], wide[1]) if len(wide) == 2 else None


def _find_time(main: Tensor, plane: tuple[int, int], model: nn.Module) -> int:
    """The axis of time: not that of the frequencies that the model's configuration counts."""
    bins = getattr(getattr(model, "config", None), "num_mel_bins", None)
    lengths = [main.shape[1 + axis] for axis in plane]
    return plane[1] if lengths[0] == bins != lengths[1] else plane[0]
