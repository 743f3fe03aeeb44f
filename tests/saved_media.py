"""Small random models of videos and sounds, saved with their processors; videos and sounds."""

import wave
from pathlib import Path

import numpy as np
from PIL import Image

from tests.families.media import CONVOLUTIONS, SMALL, WHISPER

NAMES = {0: "left", 1: "right", 2: "still"}
RATE = 16_000


def save_video_model(folder: Path, family: str = "VideoMAE") -> Path:
    """A VideoMAE or ViViT of 4 frames of 16 by 16 pixels."""
    import transformers

    own = {"tubelet_size": 2, "patch_size": 8}
    if family == "Vivit":
        own = {"tubelet_size": [1, 8, 8]}
    sizes = {"num_frames": 4, "image_size": 16, "id2label": NAMES}
    small = {name: value for name, value in SMALL.items() if name != "num_labels"}
    config = getattr(transformers, f"{family}Config")(**small, **sizes, **own)
    _save(getattr(transformers, f"{family}ForVideoClassification")(config), folder)
    edges = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    getattr(transformers, f"{family}ImageProcessor")(**edges).save_pretrained(folder)
    return folder


def save_audio_model(folder: Path, family: str = "Wav2Vec2") -> Path:
    """A Wav2Vec2, an AST of 12 steps and 8 bins, or a Whisper of half a second."""
    import transformers

    small = {name: value for name, value in SMALL.items() if name != "num_labels"}
    if family == "AST":
        sizes = {"patch_size": 4, "frequency_stride": 4, "time_stride": 4}
        sizes |= {"max_length": 12, "num_mel_bins": 8}
        config = transformers.ASTConfig(**small, **sizes, id2label=NAMES)
        model = transformers.ASTForAudioClassification(config)
        processor = transformers.ASTFeatureExtractor(max_length=12, num_mel_bins=8)
    elif family == "Whisper":
        sizes = {**WHISPER, "num_mel_bins": 8, "max_source_positions": 50, "num_labels": 3}
        model = transformers.WhisperForAudioClassification(transformers.WhisperConfig(**sizes))
        processor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    else:
        sizes = {"feat_extract_norm": "layer", "do_stable_layer_norm": False, "id2label": NAMES}
        config = transformers.Wav2Vec2Config(**small, **CONVOLUTIONS, **sizes)
        model = transformers.Wav2Vec2ForSequenceClassification(config)
        processor = transformers.Wav2Vec2FeatureExtractor(do_normalize=False)
    _save(model, folder)
    processor.save_pretrained(folder)
    return folder


def draw_frames(count: int = 6, size: tuple[int, int] = (24, 16)) -> list[Image.Image]:
    """Grey frames, each lighter than the one before."""
    return [Image.new("RGB", size, (40 * n, 40 * n, 40 * n)) for n in range(count)]


def save_gif(path: Path, frames: list[Image.Image]) -> Path:
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=50)
    return path


def save_wav(
    path: Path, values: np.ndarray, rate: int = RATE, width: int = 2, channels: int = 1
) -> Path:
    """Write values from -1 to 1, (time,) or (time, channels), as whole numbers of `width` bytes."""
    whole = np.round(values * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    if width == 1:
        content = (whole + 128).astype(np.uint8).tobytes()
    else:
        content = b"".join(int(v).to_bytes(width, "little", signed=True) for v in whole.ravel())
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)
    return path


def make_sound(length: int = 800) -> np.ndarray:
    return 0.5 * np.sin(np.arange(length) * 0.2)


def _save(model, folder: Path) -> None:
    from tests.saved import _perturb

    _perturb(model).save_pretrained(folder)
