"""Read sounds: WAV files, by the standard library, and arrays."""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whence._util.files import check_is_file
from whence.errors import WhenceError

SOUNDS = frozenset([".wav"])
# Sounds that whence does not read.
OTHER_SOUNDS = frozenset(".aac .aif .aiff .flac .m4a .mp3 .oga .ogg .opus .wma".split())
# No model hears more at once; a file may hold gigabytes.
MAX_VALUES = 2**25


@dataclass(frozen=True)
class Recording:
    """A sound.

    Attributes:
        values: (time,), from -1 to 1; the mean of its channels.
        rate: Values a second; None if that is not known.
    """

    values: NDArray[np.float32]
    rate: int | None


def read_sound(path: str | Path) -> Recording:
    """Read a WAV file of whole numbers (PCM) of 8, 16, 24 or 32 bits.

    Raises:
        WhenceError: It is none, or damaged, or far too long.
    """
    path = Path(path)
    if path.suffix.lower() in OTHER_SOUNDS:
        raise WhenceError(describe_other_sound(path))
    check_is_file(path, "a sound")
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, count, *_ = file.getparams()
            if count * channels > MAX_VALUES:
                raise WhenceError(f"'{path}' is {count / rate:.0f} s long, more than whence reads.")
            content = file.readframes(count)
    except (wave.Error, EOFError) as error:
        raise WhenceError(_describe_wrong_wav(path, str(error))) from None
    except OSError as error:
        raise WhenceError(f"'{path}' cannot be read: {error.strerror}.") from error
    if not content or not rate:
        raise WhenceError(f"'{path}' holds no sound.")
    values = _decode(content[: len(content) // (width * channels) * width * channels], width)
    return Recording(values.reshape(-1, channels).mean(1), rate)


def sound_from_array(array: np.ndarray[Any, Any], rate: int | None = None) -> Recording:
    """Make a sound of an array (time,): floats, or whole numbers of 16 bits."""
    if array.ndim != 1 or not len(array):
        raise WhenceError(f"A sound array is (time,), not {tuple(array.shape)}.")
    if array.dtype == np.int16:
        return Recording((array / 32768).astype(np.float32), rate)
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise WhenceError(
            f"A sound array is of floats without NaN, or of int16, not {array.dtype}."
        )
    return Recording(array.astype(np.float32), rate)


def describe_other_sound(path: Path) -> str:
    """Say what to do with a sound that whence does not read."""
    return (
        f"'{path}' is a sound that whence does not read; it reads .wav. Convert it: ffmpeg -i "
        f"{path.name} -ac 1 -ar 16000 {path.stem}.wav (16000 is what most models need)"
    )


def _describe_wrong_wav(path: Path, why: str) -> str:
    if "unknown format" in why:
        return (
            f"'{path}' is a WAV file of another kind than whole numbers (PCM). Convert it: ffmpeg "
            f"-i {path.name} -c:a pcm_s16le converted.wav"
        )
    return f"'{path}' is no WAV file, or damaged: {why or 'it ends too soon'}."


def _decode(content: bytes, width: int) -> NDArray[np.float32]:
    """Whole numbers of so many bytes, from -1 to 1."""
    if width == 1:  # the only one without a sign
        return ((np.frombuffer(content, np.uint8).astype(np.int16) - 128) / 128).astype(np.float32)
    if width == 3:
        padded = np.zeros((len(content) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
        whole = padded.view("<i4")[:, 0]
    else:
        whole = np.frombuffer(content, {2: "<i2", 4: "<i4"}[width])
    scale = {2: 2**15, 3: 2**31, 4: 2**31}[width]
    return (whole / scale).astype(np.float32)
