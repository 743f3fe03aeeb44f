"""Measure whether maps of a CLIP lie on the shape that the text names.

    python benchmarks/shapes.py --out docs/results/shapes.md

Pictures of two or three coloured shapes are drawn (`training/scenes.py`), of which none was seen in
training. For each, one shape is named: "a red square". Each method explains how well the text fits
the picture, with the text of another shape on the picture as what it is told apart from, or
without. The highest patch is a hit if a part of the named shape lies in it.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer, CLIPModel

from whence import Explainer, methods
from whence._util.files import write_atomically
from whence.metrics.statistics import bootstrap_mean

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "training"))
from scenes import Scenes, draw_scenes, write_caption  # noqa: E402

SIZE, PATCH = 64, 8
SEED = 2_000_000  # training draws from other seeds
BATCH = 20
# Many forward passes for each picture, or minutes of linear programs.
SLOW = [
    "attention_flow",
    "integrated_gradients",
    "occlusion",
    "rise",
    "search",
    "smoothgrad",
    "value_zeroing",
    "vit_cx",
]


class Row(NamedTuple):
    """Figures of one method: shares of pictures, or of evidence, from 0 to 1."""

    method: str
    named: list[float]
    other: list[float]
    evidence: list[float]
    told_apart: list[float] | None


def draw_pictures(count: int) -> tuple[Scenes, list[str], list[str]]:
    """Draw pictures, the text of the shape that is explained, and the text of another on it."""
    generator = torch.Generator().manual_seed(SEED)
    scenes = draw_scenes(count, generator, size=(SIZE, SIZE), fewest=2)
    things = scenes.name_things()
    texts, others = ([write_caption([thing[n]]) for thing in things] for n in (0, 1))
    return scenes, texts, others


def find_patches(masks: Tensor) -> Tensor:
    """Find the patches that a part of a shape lies in: (n, shapes, patches)."""
    return F.max_pool2d(masks.float(), PATCH).flatten(2) > 0


def explain(
    model: CLIPModel, tokenizer, scenes: Scenes, texts: list[str], others: list[str], **options
) -> Tensor:
    """Explain how well each picture fits its text: (n, patches).

    Args:
        model: The CLIP.
        tokenizer: Its tokenizer.
        scenes: The pictures.
        texts: The text of each picture.
        others: The text that each is told apart from; none if empty.
        **options: Of the explainer.
    """
    scores = []
    for start in range(0, len(texts), BATCH):
        part = slice(start, start + BATCH)
        rows = list(range(len(texts[part])))
        tokens = tokenizer(texts[part] + others[part], padding=True, return_tensors="pt")
        inputs = {
            "input_ids": tokens["input_ids"],
            "attention_mask": tokens["attention_mask"],
            "pixel_values": (scenes.pixels[part] - 0.5) / 0.5,
        }
        against = [len(rows) + row for row in rows] if others else None
        result = Explainer(model).explain(
            inputs, rows, against=against, of="pixel_values", **options
        )
        scores.append(result.scores)
    return torch.cat(scores)


def measure(
    scores: Tensor, named: Tensor, other: Tensor
) -> tuple[list[float], list[float], list[float]]:
    """Measure where the highest patch lies, and how much of the evidence is on the named shape."""
    peak = scores.argmax(1, keepdim=True)
    hits = named.gather(1, peak)[:, 0]
    misses = other.gather(1, peak)[:, 0] & ~hits
    positive = scores.clamp(min=0)
    share = (positive * named).sum(1) / positive.sum(1).clamp(min=1e-30)
    return hits.double().tolist(), misses.double().tolist(), share.double().tolist()


def write_row(row: Row) -> str:
    def say(values: list[float]) -> str:
        mean, low, high = bootstrap_mean(values)
        return f"{100 * mean:.1f} ± {50 * (high - low):.1f}"

    apart = "" if row.told_apart is None else say(row.told_apart)
    other = 100 * sum(row.other) / len(row.other)
    return f"| `{row.method}` | {say(row.named)} | {other:.1f} | {say(row.evidence)} | {apart} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "examples" / "shapes_clip")
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--methods", help="names with commas; all but slow ones if left out")
    parser.add_argument("--out", type=Path, required=True, help="a file for the table")
    options = parser.parse_args()
    model = CLIPModel.from_pretrained(options.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    scenes, texts, others = draw_pictures(options.pictures)
    patches = find_patches(scenes.masks)
    named, other = patches[:, 0], patches[:, 1:].any(1)
    names = [name for name in methods.available("image") if name not in SLOW]
    rows = []
    for name in options.methods.split(",") if options.methods else names:
        began = time.perf_counter()
        hits, misses, share = measure(
            explain(model, tokenizer, scenes, texts, [], method=name), named, other
        )
        told_apart = None
        if methods.get(name).class_specific:
            scores = explain(model, tokenizer, scenes, texts, others, method=name)
            told_apart = measure(scores, named, other)[0]
        rows.append(Row(name, hits, misses, share, told_apart))
        print(write_row(rows[-1]), f"{time.perf_counter() - began:.0f} s", flush=True)
    rows.sort(key=lambda row: -sum(row.named))
    chance, chance_other = named.float().mean(), (other & ~named).float().mean()
    shares = [f"{100 * float(share):.1f}" for share in (chance, chance_other, chance, chance)]
    lines = [
        "| method | peak on the named shape | on another | evidence on the named | told apart |",
        "| --- | ---: | ---: | ---: | ---: |",
        *map(write_row, rows),
        f"| chance | {' | '.join(shares)} |",
    ]
    write_atomically(options.out, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
