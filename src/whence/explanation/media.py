"""The video or sound that was explained, as the model saw it, small enough to be drawn and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

# A figure is a few hundred pixels wide; more would not be drawn better.
MAX_SIDE, MAX_COLUMNS, MAX_BINS = 256, 2048, 256


@dataclass(frozen=True)
class Video:
    """The frames of a video.

    Attributes:
        frames: (frames, height, width, 3), bytes; at most 256 pixels wide and high.
        is_stretched: Whether colours are from the lowest value to the highest, as the way they were
            normalised is not known.
    """

    frames: NDArray[np.uint8]
    is_stretched: bool = False

    @classmethod
    def from_pixels(cls, pixels: Tensor, is_stretched: bool = False) -> Video:
        """Keep the frames of a video.

        Args:
            pixels: (frames, channels, height, width), values from 0 to 1; or any, to be stretched.
            is_stretched: Whether to stretch them.
        """
        values = pixels.detach().float().cpu()
        if is_stretched:
            lowest, highest = values.amin(), values.amax()
            values = (values - lowest) / (highest - lowest).clamp(min=1e-12)
        scale = MAX_SIDE / max(values.shape[-2:])
        if scale < 1:
            size = [max(1, round(side * scale)) for side in values.shape[-2:]]
            values = F.interpolate(values, size=size, mode="area")
        values = values[:, :3] if values.shape[1] >= 3 else values[:, :1].expand(-1, 3, -1, -1)
        frames = (values.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        return cls(np.ascontiguousarray(frames.numpy()), is_stretched)


@dataclass(frozen=True)
class Waveform:
    """The waveform of a sound, as its lowest and highest value in each of at most 2048 columns.

    Attributes:
        lows: (columns,), and `highs` likewise.
        highs: As `lows`.
        length: Number of values that it had.
        seconds: How long it is; None if that is not known.
    """

    lows: NDArray[np.float32]
    highs: NDArray[np.float32]
    length: int
    seconds: float | None = None

    @classmethod
    def from_values(cls, values: Tensor, seconds: float | None = None) -> Waveform:
        """Keep a signal, (time,)."""
        line = values.detach().float().cpu()
        columns = min(len(line), MAX_COLUMNS)
        edges = torch.linspace(0, len(line), columns + 1).long()[:-1].numpy()
        lows, highs = (of.reduceat(line.numpy(), edges) for of in (np.minimum, np.maximum))
        return cls(lows, highs, len(line), seconds)


@dataclass(frozen=True)
class Spectrogram:
    """How much of each frequency a sound has over time.

    Attributes:
        values: (frequency, time), low frequencies first; at most 256 and 2048 of them.
        length: Number of steps of time that it had.
        seconds: How long it is; None if that is not known.
    """

    values: NDArray[np.float32]
    length: int
    seconds: float | None = None

    @classmethod
    def from_values(cls, values: Tensor, seconds: float | None = None) -> Spectrogram:
        """Keep a spectrogram, (frequency, time)."""
        length = values.shape[1]
        small = values.detach().float().cpu()
        size = min(small.shape[0], MAX_BINS), min(length, MAX_COLUMNS)
        if size != tuple(small.shape):
            small = F.adaptive_avg_pool2d(small[None], size)[0]
        return cls(small.numpy().copy(), length, seconds)


Media: TypeAlias = Video | Waveform | Spectrogram
"""What was explained, where it is no photo and no text."""


def encode_media(media: list[Media]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Videos and sounds as they are saved: facts for each, and their values by name."""
    facts: list[dict[str, Any]] = []
    tensors = {}
    for number, one in enumerate(media):
        if isinstance(one, Video):
            facts.append({"kind": "video", "is_stretched": one.is_stretched})
            values: NDArray[Any] = one.frames
        else:
            is_wave = isinstance(one, Waveform)
            values = np.stack([one.lows, one.highs]) if isinstance(one, Waveform) else one.values
            kind = "waveform" if is_wave else "spectrogram"
            facts.append({"kind": kind, "length": one.length, "seconds": one.seconds})
        tensors[_name(number)] = torch.from_numpy(np.ascontiguousarray(values))
    return facts, tensors


def decode_media(saved: Any, tensors: Mapping[str, Tensor], count: int) -> list[Media]:
    """Read what `encode_media` gave of so many samples.

    Raises:
        ValueError: It is damaged, or nothing that whence writes.
    """
    if len(saved) != count:
        raise ValueError(f"it has media of {len(saved)} samples, and {count} samples")
    return [_decode(facts, tensors[_name(number)]) for number, facts in enumerate(saved)]


def _decode(facts: Mapping[str, Any], tensor: Tensor) -> Media:
    values = tensor.numpy()
    if facts["kind"] == "video":
        if (
            values.dtype != np.uint8
            or values.ndim != 4
            or values.shape[-1] != 3
            or 0 in values.shape
        ):
            raise ValueError(f"its video is of shape {values.shape}")
        return Video(values, bool(facts["is_stretched"]))
    seconds = None if facts["seconds"] is None else float(facts["seconds"])
    if values.ndim != 2 or 0 in values.shape or not np.isfinite(values).all():
        raise ValueError(f"its sound is of shape {values.shape}, or not finite")
    values = values.astype(np.float32)
    if facts["kind"] == "waveform":
        lows, highs = values
        return Waveform(lows, highs, int(facts["length"]), seconds)
    if facts["kind"] != "spectrogram":
        raise ValueError(f"there is no kind {facts['kind']!r}")
    return Spectrogram(values, int(facts["length"]), seconds)


def _name(number: int) -> str:
    return f"media.{number}"
