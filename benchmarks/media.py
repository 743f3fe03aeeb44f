"""Does the map follow what decides? Toys of video and sound that are trained in seconds.

    python benchmarks/media.py --out docs/results/media.md

Small models of transformers learn from clips that are made up as they go:

- video (ViViT, VideoMAE, and TimeSformer, whose attention is divided): a square moves over noise,
  and a grey one stands still. The class is the colour of the square that moves: red, green or blue.
- spectrogram (AST): noise with a tone. The class is whether it stays, rises or falls.
- waveform (Wav2Vec2): noise with a short tone. The class is its pitch: low, middle or high.

A fourth class, "none", is of clips in which nothing decides, so that the others have to be seen or
heard. Each method explains the class of clips that were not seen in training, and in which
something decides; those that a toy gets wrong are left out. Of a video, a hit is a frame of the map
whose highest patch touches the square that moves; of a sound, a map whose highest patch or segment
touches the tone. All is seeded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    ASTConfig,
    ASTForAudioClassification,
    TimesformerConfig,
    TimesformerForVideoClassification,
    VideoMAEConfig,
    VideoMAEForVideoClassification,
    VivitConfig,
    VivitForVideoClassification,
    Wav2Vec2Config,
    Wav2Vec2ForSequenceClassification,
)

from whence import Explainer
from whence._util.files import write_atomically

FRAMES, SIDE, PATCH, SQUARE = 8, 32, 8, 8
TIMES, BINS, CELL, TONE = 64, 32, 8, (16, 3)
LENGTH = 1600
RATE = 5e-3  # at which toys learn
METHODS = (
    *("whence", "shared_evidence", "shared_evidence, sharing 2", "shared_evidence, sharing 0"),
    *("gae", "tiba", "rollout", "attnlrp"),
    *("attention_norm", "attcat", "input_x_gradient", "random"),
)
SEEDS, SAMPLES = (0, 1, 2), 100
ACCURACY = "classified right"
START, END = "<!-- table -->", "<!-- end -->"
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
    """Spectrograms (clips, time, frequency) of noise with a tone that stays, rises or falls."""
    length, width = TONE
    clips = 0.5 * torch.randn(count, TIMES, BINS, generator=generator)
    labels = torch.randint(4, (count,), generator=generator)
    starts = torch.randint(TIMES - length + 1, (count, 1), generator=generator)
    slopes = torch.tensor([0.0, 0.0, 0.5, -0.5])[labels][:, None]
    middles = torch.randint(6, BINS - 6, (count, 1), generator=generator)
    since = torch.arange(TIMES) - starts
    during = (since >= 0) & (since < length)
    heights = middles + slopes * (since - length / 2)
    near = (torch.arange(BINS) - heights[:, :, None]).abs() < width / 2
    decides = near & during[:, :, None] & (labels > 0)[:, None, None]
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


def _build_timesformer() -> nn.Module:
    """Divided attention: over the frames of each patch, then over the patches of each frame."""
    config = TimesformerConfig(
        **SMALL, image_size=SIDE, patch_size=PATCH, num_frames=FRAMES, num_labels=4
    )
    return TimesformerForVideoClassification(config)


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


COLORS = ("none", "red", "green", "blue")
SLOPES = ("none", "steady", "rising", "falling")
PITCHES = ("none", "low", "middle", "high")
TASKS = {
    "ViViT": Task(_build_vivit, draw_videos, "pixel_values", COLORS, 300),
    "VideoMAE": Task(_build_videomae, draw_videos, "pixel_values", COLORS, 300),
    "TimeSformer": Task(_build_timesformer, draw_videos, "pixel_values", COLORS, 300),
    "AST": Task(_build_ast, draw_spectrograms, "input_values", SLOPES, 400),
    "Wav2Vec2": Task(_build_wav2vec2, draw_waveforms, "input_values", PITCHES, 150),
}


def train(name: str, seed: int = 0, steps: int | None = None, batch: int = 32) -> nn.Module:
    """Train one of the toys."""
    task = TASKS[name]
    steps = steps or task.steps
    torch.manual_seed(seed)
    model = task.build()
    model.config.id2label = dict(enumerate(task.names))
    model.config.label2id = {one: number for number, one in enumerate(task.names)}
    generator = torch.Generator().manual_seed(seed + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
    for _ in range(steps):
        clips = task.draw(batch, generator)
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
def find_right(model: nn.Module, name: str, clips: Clips) -> Tensor:
    """Whether a toy classifies each clip right."""
    logits = model(**{TASKS[name].name: clips.inputs}).logits
    return logits.argmax(-1) == clips.labels


def measure_hits(
    model: nn.Module, name: str, clips: Clips, method: str, **options: object
) -> float:
    """The share of hits: of frames of a video, of maps of a sound."""
    right = find_right(model, name, clips)
    inputs = {TASKS[name].name: clips.inputs[right]}
    result = Explainer(model).explain(inputs, method=method, **options)
    return float(find_hits(result.scores, result.grid, clips.decides[right]).double().mean())


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


def measure_all(clips: int, names: Sequence[str] = ()) -> dict[str, dict[str, list[float]]]:
    """Train toys with all seeds; accuracies and hits by toy, then method, for each seed."""
    figures: dict[str, dict[str, list[float]]] = {}
    for name in names or TASKS:
        drawn = draw_held_out(name, clips)
        rows = figures.setdefault(name, {})
        for seed in SEEDS:
            model = train(name, seed)
            accuracy = float(find_right(model, name, drawn).double().mean())
            rows.setdefault(ACCURACY, []).append(accuracy)
            for method in METHODS:
                label, _, sharing = method.partition(", sharing ")
                options = {"sharing": float(sharing)} if sharing else {}
                hits = measure_hits(model, name, drawn, label, **options)
                rows.setdefault(method, []).append(hits)
            print(name, seed, {key: round(one[-1], 3) for key, one in rows.items()}, flush=True)
    return figures


def format_table(figures: dict[str, dict[str, list[float]]]) -> str:
    """A table in Markdown: per cent, the mean of all seeds, and the lowest if they differ."""
    lines = [f"| | {' | '.join(figures)} |", f"| --- |{' ---: |' * len(figures)}"]
    for row in (ACCURACY, *METHODS):
        cells = [_format_cell(figures[name][row]) for name in figures]
        method, comma, rest = row.partition(",")
        shown = row if row == ACCURACY else f"`{method}`{comma}{rest}"
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _format_cell(values: list[float]) -> str:
    mean, lowest = (f"{100 * one:.1f}" for one in (sum(values) / len(values), min(values)))
    return mean if mean == lowest else f"{mean} ({lowest})"


def main() -> None:
    """Measure, and put the table between the marks of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a page whose table is replaced")
    parser.add_argument("--clips", type=int, default=SAMPLES)
    parser.add_argument("--toys", nargs="*", default=(), help="some of the toys; all if left out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = format_table(measure_all(arguments.clips, arguments.toys))
    print(table)
    if arguments.out is not None:
        before, _, rest = arguments.out.read_text(encoding="utf-8").partition(START)
        after = rest.partition(END)[2]
        page = f"{before}{START}\n{table}\n{END}{after}"
        write_atomically(arguments.out, page.encode())


if __name__ == "__main__":
    main()
