"""Does the map follow what decides? Toys of video and sound that are trained in seconds.

    python benchmarks/media.py --out docs/results/media.md

Small models of transformers learn from clips that are made up as they go:

- video (ViViT and VideoMAE): a square moves over noise, in front of a square that stands still.
  The class is the colour of the square that moves; that of the other means nothing.
- spectrogram (AST): noise with a tone, a short line at one height. The class is the tone's height:
  low, middle or high.
- waveform (Wav2Vec2): noise with a short tone. The class is its pitch.

Each method explains the predicted class of clips that were not seen in training. Of a video, a hit
is a frame of the map whose highest patch touches the square that moves; of a spectrogram, a map
whose highest patch touches the tone; of a waveform, a map whose highest segment lies in the tone.
All is seeded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    ASTConfig,
    ASTForAudioClassification,
    VideoMAEConfig,
    VideoMAEForVideoClassification,
    VivitConfig,
    VivitForVideoClassification,
    Wav2Vec2Config,
    Wav2Vec2ForSequenceClassification,
)

from whence import Explainer

FRAMES, SIDE, PATCH, SQUARE = 8, 32, 8, 8
TIMES, BINS, CELL, TONE = 64, 32, 8, (16, 3)
LENGTH, RATE = 1600, 1600
METHODS = ("whence", "gae", "tiba", "rollout", "attnlrp", "input_x_gradient", "occlusion")
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@dataclass(frozen=True)
class Clips:
    """Clips, their classes, and what decides: true where the square or the tone is."""

    inputs: Tensor
    labels: Tensor
    decides: Tensor  # (clips, frames, height, width), (clips, time, frequency) or (clips, time)


def draw_videos(count: int, generator: torch.Generator) -> Clips:
    """Videos (clips, frames, 3, height, width) of a coloured square that moves, and a grey one.

    Values are as after a usual normalisation, from -1 to 1.
    """
    last = SIDE - SQUARE
    clips = 0.3 * torch.randn(count, FRAMES, 3, SIDE, SIDE, generator=generator)
    labels = torch.randint(4, (count,), generator=generator)
    still = torch.randint(last + 1, (count, 1, 2), generator=generator)
    starts = torch.randint(last + 1, (count, 1, 2), generator=generator)
    # It goes to the opposite side of the picture.
    stops = (starts + SIDE // 2) % (last + 1)
    share = torch.linspace(0, 1, FRAMES)[:, None]
    places = (starts * (1 - share) + stops * share).round().long()
    grey = _mark_squares(still.expand(-1, FRAMES, -1))
    decides = _mark_squares(places) & (labels > 0)[:, None, None, None]
    colors = torch.where(torch.eye(3).bool(), 0.9, -0.6)[(labels - 1).clamp(min=0)]
    clips = torch.where(grey[:, :, None], 0.4, clips)
    clips = torch.where(decides[:, :, None], colors[:, None, :, None, None], clips)
    return Clips(clips.clamp(-1, 1), labels, decides)


def _mark_squares(places: Tensor) -> Tensor:
    """True in squares, (clips, frames, height, width), given their upper left corners."""
    line = torch.arange(SIDE)
    rows, columns = (
        (line >= at[..., None]) & (line < at[..., None] + SQUARE) for at in places.unbind(-1)
    )
    return rows[..., :, None] & columns[..., None, :]


def draw_spectrograms(count: int, generator: torch.Generator) -> Clips:
    """Spectrograms (clips, time, frequency) of noise with a tone."""
    clips = 0.5 * torch.randn(count, TIMES, BINS, generator=generator)
    labels = torch.randint(4, (count,), generator=generator)
    starts = torch.randint(TIMES - TONE[0] + 1, (count, 1), generator=generator)
    heights = torch.randint(9, (count, 1), generator=generator) + 11 * (labels[:, None] - 1)
    times, bins = torch.arange(TIMES), torch.arange(BINS)
    during = (times >= starts) & (times < starts + TONE[0])
    high = (bins >= heights) & (bins < heights + TONE[1])
    decides = during[:, :, None] & high[:, None, :] & (labels > 0)[:, None, None]
    return Clips(clips + 2.0 * decides, labels, decides)


def draw_waveforms(count: int, generator: torch.Generator) -> Clips:
    """Waveforms (clips, time) of noise with a short tone of one of three pitches."""
    clips = 0.3 * torch.randn(count, LENGTH, generator=generator)
    labels = torch.randint(4, (count,), generator=generator)
    length = LENGTH // 5
    starts = torch.randint(LENGTH - length, (count, 1), generator=generator)
    phases = 6.2832 * torch.rand(count, 1, generator=generator)
    times = torch.arange(LENGTH)
    decides = (times >= starts) & (times < starts + length) & (labels > 0)[:, None]
    pitches = torch.tensor([0.0, 0.06, 0.15, 0.3])[labels][:, None]
    return Clips(clips + decides * torch.sin(6.2832 * pitches * times + phases), labels, decides)


def _build_vivit() -> nn.Module:
    config = VivitConfig(
        **SMALL, image_size=SIDE, num_frames=FRAMES, tubelet_size=[1, PATCH, PATCH], num_labels=4
    )
    return VivitForVideoClassification(config)


def _build_videomae() -> nn.Module:
    config = VideoMAEConfig(
        **SMALL,
        image_size=SIDE,
        patch_size=PATCH,
        num_frames=FRAMES,
        tubelet_size=2,
        num_labels=4,
    )
    return VideoMAEForVideoClassification(config)


def _build_ast() -> nn.Module:
    config = ASTConfig(
        **SMALL,
        patch_size=CELL,
        frequency_stride=CELL,
        time_stride=CELL,
        max_length=TIMES,
        num_mel_bins=BINS,
        num_labels=4,
    )
    return ASTForAudioClassification(config)


def _build_wav2vec2() -> nn.Module:
    small = {name: value for name, value in SMALL.items() if "probs" not in name}
    config = Wav2Vec2Config(
        **small,
        feat_extract_norm="layer",
        conv_dim=(16, 32),
        conv_kernel=(20, 8),
        conv_stride=(10, 4),
        conv_bias=True,
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=16,
        num_labels=4,
        attention_dropout=0.0,
        activation_dropout=0.0,
        hidden_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        apply_spec_augment=False,
    )
    return Wav2Vec2ForSequenceClassification(config)


@dataclass(frozen=True)
class Task:
    """What a toy is, and what it learns from."""

    build: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], Clips]
    name: str  # of the model's input
    names: tuple[str, ...]  # of the classes
    steps: int
    batch: int = 32
    rate: float = 3e-3


COLORS, PITCHES = ("none", "red", "green", "blue"), ("none", "low", "middle", "high")
TASKS = {
    "ViViT": Task(_build_vivit, draw_videos, "pixel_values", COLORS, 600),
    "VideoMAE": Task(_build_videomae, draw_videos, "pixel_values", COLORS, 600),
    "AST": Task(_build_ast, draw_spectrograms, "input_values", PITCHES, 150),
    "Wav2Vec2": Task(_build_wav2vec2, draw_waveforms, "input_values", PITCHES, 150),
}


def train(name: str, seed: int = 0, steps: int | None = None) -> nn.Module:
    """Train one of the toys."""
    task = TASKS[name]
    torch.manual_seed(seed)
    model = task.build()
    model.config.id2label = dict(enumerate(task.names))
    model.config.label2id = {one: number for number, one in enumerate(task.names)}
    generator = torch.Generator().manual_seed(seed + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.rate, steps or task.steps)
    for _ in range(steps or task.steps):
        clips = task.draw(task.batch, generator)
        logits = model(**{task.name: clips.inputs}).logits
        loss = F.cross_entropy(logits, clips.labels, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def draw_held_out(name: str, count: int) -> Clips:
    """Clips that were not seen in training, all with something that decides."""
    drawn = TASKS[name].draw(2 * count, torch.Generator().manual_seed(2_000_000))
    chosen = (drawn.labels > 0).nonzero()[:count, 0]
    return Clips(drawn.inputs[chosen], drawn.labels[chosen], drawn.decides[chosen])


@torch.no_grad()
def measure_accuracy(model: nn.Module, name: str, clips: Clips) -> float:
    """The share of clips that a toy classifies right."""
    logits = model(**{TASKS[name].name: clips.inputs}).logits
    return float((logits.argmax(-1) == clips.labels).double().mean())


def measure_hits(
    model: nn.Module, name: str, clips: Clips, method: str, **options: object
) -> float:
    """The share of hits: of frames of a video, of maps of a sound."""
    inputs = {TASKS[name].name: clips.inputs}
    result = Explainer(model).explain(inputs, method=method, **options)
    return float(find_hits(result.scores, result.grid, clips.decides).double().mean())


def find_hits(scores: Tensor, grid: tuple[int, ...], decides: Tensor) -> Tensor:
    """Whether the highest unit touches what decides: (clips, frames) of a video, else (clips,)."""
    decided = decides
    for axis, count in enumerate(grid, 1):
        length = decided.shape[axis]
        step = -(-length // count)  # the last one may be shorter
        spread = F.pad(decided.movedim(axis, -1).float(), (0, step * count - length))
        decided = spread.unflatten(-1, (count, step)).amax(-1).movedim(-1, axis)
    maps = scores.reshape(len(scores), *grid)
    if len(grid) == 3:
        maps, decided = maps.flatten(2), decided.flatten(2)
    else:
        maps, decided = maps.flatten(1), decided.flatten(1)
    return decided.gather(-1, maps.argmax(-1, keepdim=True))[..., 0] > 0
