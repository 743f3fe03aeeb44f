"""Videos and sounds to what a model takes, with transformers' own processors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from whence.errors import WhenceError
from whence.explanation.media import Media, Spectrogram, Video, Waveform
from whence.inputs.sounds import Recording
from whence.inputs.videos import VideoClip, choose_evenly
from whence.models.image_preprocessing import PixelScale
from whence.models.loaded import PreparedBatch

Processor = Callable[..., Mapping[str, Any]]
# The names that configurations have for the number of frames that a model reads.
_FRAME_COUNTS = ("num_frames", "frames_per_clip")
# Filter banks as Kaldi has them, for extractors that name no other step: 10 ms.
_STEP = 0.01


class VideoPreprocessor:
    """Prepare videos with an image processor of transformers that takes frames.

    Args:
        processor: The image processor.
        model: Whose configuration says how many frames it reads.
    """

    def __init__(self, processor: Processor, model: nn.Module) -> None:
        self.processor = processor
        config = getattr(model, "config", None)
        counts = (getattr(config, name, None) for name in _FRAME_COUNTS)
        self.frames: int | None = next((n for n in counts if isinstance(n, int)), None)

    def __call__(self, videos: Sequence[VideoClip]) -> PreparedBatch:
        """Prepare a batch of videos: as many frames of each as the model reads, evenly spaced."""
        notes: list[list[str]] = []
        pixels = []
        for video in videos:
            held = len(video.frames)
            wanted = self.frames or held
            chosen = choose_evenly(held, wanted)
            pixels.append(self._to_pixels([video.frames[number] for number in chosen]))
            many = f"the model saw {wanted} of the video's {video.count} frames, evenly spaced"
            few = f"the video has {video.count} frames, some of which the model saw repeatedly"
            notes.append([] if video.count == wanted else [many if video.count > wanted else few])
        inputs = _stack(pixels, "videos", "sizes")
        media: list[Media] = [Video.from_pixels(self.scale.to_unit(one)) for one in inputs]
        return PreparedBatch(inputs, notes, media=media)

    @cached_property
    def scale(self) -> PixelScale:
        """The normalisation of pixels, read off black and white frames."""
        count = self.frames or 2
        return PixelScale.measure(lambda image: self._to_pixels([image] * count)[0])

    def _to_pixels(self, frames: list[Image.Image]) -> Tensor:
        """Make pixels of frames: (frames, 3, height, width)."""
        pixels: Tensor = self.processor(frames, return_tensors="pt")["pixel_values"]
        if pixels.dim() != 5 or pixels.shape[2] != 3:
            raise WhenceError(
                f"The image processor makes {tuple(pixels.shape)} of a video, and not pixels (1, "
                f"frames, 3, height, width). Explain what it returns: "
                f"Explainer(model).explain(inputs)."
            )
        return pixels[0]


class AudioPreprocessor:
    """Prepare sounds with a feature extractor of transformers.

    Args:
        processor: The feature extractor.
        model: Whose main input it makes.
    """

    def __init__(self, processor: Processor, model: nn.Module) -> None:
        self.processor = processor
        self.name = str(getattr(model, "main_input_name", "input_values"))
        self.rate: int | None = getattr(processor, "sampling_rate", None)

    def __call__(self, sounds: Sequence[Recording]) -> PreparedBatch:
        """Prepare a batch of sounds, of one length where the model hears waveforms."""
        values = [self._extract(sound) for sound in sounds]
        inputs = _stack(values, "sounds", "lengths")
        pairs = [self._draw(sound, one) for sound, one in zip(sounds, inputs, strict=True)]
        return PreparedBatch(inputs, [note for _, note in pairs], media=[one for one, _ in pairs])

    def _extract(self, sound: Recording) -> Tensor:
        if sound.rate is not None and self.rate is not None and sound.rate != self.rate:
            raise WhenceError(
                f"The sound has {sound.rate} values a second, and the model needs {self.rate}; "
                f"whence does not change it. Convert it: ffmpeg -i sound.wav -ar {self.rate} "
                f"converted.wav"
            )
        rate = {} if self.rate is None else {"sampling_rate": self.rate}
        extracted = self.processor(sound.values, return_tensors="pt", **rate)
        if self.name not in extracted:
            raise WhenceError(
                f"The feature extractor makes {', '.join(extracted)}, and the model takes "
                f"{self.name}."
            )
        values: Tensor = extracted[self.name]
        return values[0]

    def _draw(self, sound: Recording, values: Tensor) -> tuple[Media, list[str]]:
        """What the model heard of a sound, and a note if that is not all."""
        rate = sound.rate or self.rate
        seconds = None if rate is None else len(sound.values) / rate
        if values.dim() == 1:
            return Waveform.from_values(values, seconds), []
        plane = values.reshape(values.shape[-2:])
        hop, bins = getattr(self.processor, "hop_length", None), self._count_bins()
        picture = plane if plane.shape[0] == bins != plane.shape[1] else plane.T
        steps = picture.shape[1]
        step = _STEP if hop is None or self.rate is None else hop / self.rate
        heard = None if self.rate is None else steps * step
        notes = []
        if seconds is not None and heard is not None and seconds > heard + 2 * step:
            notes = [f"the model heard only the first {heard:.3g} s of {seconds:.3g} s"]
        return Spectrogram.from_values(picture, heard), notes

    def _count_bins(self) -> int | None:
        names = ("num_mel_bins", "feature_size")
        counts = (getattr(self.processor, name, None) for name in names)
        return next((n for n in counts if isinstance(n, int) and n > 1), None)


def _stack(values: Sequence[Tensor], what: str, sides: str) -> Tensor:
    if len({tuple(one.shape) for one in values}) > 1:
        raise WhenceError(
            f"The {what} have different {sides} even when prepared for the model; explain them one "
            f"by one."
        )
    return torch.stack(list(values))
