"""Can the embedded image model tell that a photo is of nothing it knows? A simple criterion, tried.

    WHENCE_DATA=... python benchmarks/unfamiliar.py

Features are the class token after each block of `pets`. Means of cats and dogs and one covariance
are those of photos that it was trained on; a photo's distance to the nearer mean is Mahalanobis's
(Lee et al. 2018). Three scores are tried: one less the highest probability, the distance after the
last block, and the mean over all blocks of the standardised logarithm of the distance. A photo is
noted if its score is above that of 98 % of one half of held-out pets; false alarms are those of the
other half, and of ImageNet's cats and dogs. All is seeded.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from whence.models import load

TRAINED, HELD_OUT, MADE_UP, BATCH = 1500, 1000, 40, 16
Floats = NDArray[np.float64]
# Classes of ImageNet: cats and dogs, and what looks like them (wolves, foxes, wild cats).
PETS = {*range(151, 269), *range(281, 286)}
ALIKE = {*range(269, 281), *range(286, 294)}


def read_pets(folder: Path, split: str, count: int) -> list[tuple[str, Image.Image]]:
    with (folder / "labels.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    chosen = np.random.default_rng(0).permutation(len(rows))[:count]
    return [
        (rows[n]["species"], Image.open(folder / "images" / f"{rows[n]['image']}.jpg"))
        for n in chosen
    ]


def read_imagenet(folder: Path) -> Iterator[tuple[str, Image.Image]]:
    classes = json.loads((folder / "classes.json").read_text())
    for file in sorted((folder / "val").rglob("*.JPEG")):
        index = int(classes[file.parent.name][0])
        group = (
            "alike" if index in ALIKE else "ImageNet's pets" if index in PETS else "other photos"
        )
        yield group, Image.open(file)


def make_pictures() -> Iterator[tuple[str, Image.Image]]:
    random = np.random.default_rng(0)
    for _ in range(MADE_UP):
        yield "noise", Image.fromarray(random.integers(0, 256, (160, 160, 3), dtype=np.uint8))
        drawing = Image.new("RGB", (160, 160), tuple(random.integers(180, 256, 3).tolist()))
        pen = ImageDraw.Draw(drawing)
        for _ in range(random.integers(1, 6)):
            left, top, width, height = random.integers(10, 80, 4).tolist()
            color = tuple(random.integers(0, 256, 3).tolist())
            shape = pen.ellipse if random.random() < 0.5 else pen.rectangle
            shape((left, top, left + width, top + height), fill=color)
        yield "drawings", drawing


def compute_features(
    photos: Iterable[tuple[str, Image.Image]],
) -> tuple[NDArray[np.str_], Floats, Floats]:
    """Names, class tokens after each block (photos, blocks, width), highest probabilities."""
    loaded, names, tokens, sure = load(None, "image"), [], [], []
    batch: list[Image.Image] = []

    def run() -> None:
        with torch.inference_mode():
            pixels = loaded.prepare(batch).inputs
            returned = loaded.model(pixel_values=pixels, output_hidden_states=True)
        tokens.append(torch.stack([one[:, 0] for one in returned.hidden_states[1:]], 1).numpy())
        sure.append(returned.logits.softmax(-1).amax(-1).numpy())
        batch.clear()

    for name, photo in photos:
        names.append(name)
        batch.append(photo.convert("RGB"))
        if len(batch) == BATCH:
            run()
    if batch:
        run()
    return np.array(names), np.concatenate(tokens).astype(float), np.concatenate(sure).astype(float)


def measure_distances(tokens: Floats, fitted: Floats, names: NDArray[np.str_]) -> Floats:
    """Squared Mahalanobis distances to the nearer mean, of (photos, width)."""
    means = [fitted[names == name].mean(axis=0) for name in np.unique(names)]
    rest = np.concatenate(
        [fitted[names == n] - m for n, m in zip(np.unique(names), means, strict=True)]
    )
    covariance = rest.T @ rest / len(rest)
    covariance += 0.01 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    inverse = np.linalg.inv(covariance)
    return np.min([(((tokens - m) @ inverse) * (tokens - m)).sum(axis=1) for m in means], axis=0)


def measure_auroc(known: Floats, other: Floats) -> float:
    """The chance that a photo of something else scores higher than one of a pet."""
    return float(np.mean(other[:, None] > known) + np.mean(other[:, None] == known) / 2)


def main() -> None:
    data = Path(os.environ["WHENCE_DATA"])
    species, fitted, _ = compute_features(read_pets(data / "pets160", "trainval", TRAINED))
    held = [("held out", p) for _, p in read_pets(data / "pets160", "test", HELD_OUT)]
    groups, tokens, held_sure = compute_features(
        [*held, *read_imagenet(data / "imagenet"), *make_pictures()]
    )

    def standardize(block: int) -> Floats:
        own = np.log(measure_distances(fitted[:, block], fitted[:, block], species))
        distances = np.log(measure_distances(tokens[:, block], fitted[:, block], species))
        return (distances - own.mean()) / own.std()

    every = [standardize(block) for block in range(fitted.shape[1])]
    scores = {
        "highest probability": 1 - held_sure,
        "distance, last block": every[-1],
        "distance, all blocks": np.mean(every, axis=0),
    }
    shown = ("ImageNet's pets", "alike", "other photos", "noise", "drawings")
    counts = ", ".join(f"{np.sum(groups == name)} {name}" for name in ("held out", *shown))
    print(f"{counts}.\n\n| score | AUROC | held-out pets | {' | '.join(shown)} |")
    print("| --- |" + " ---: |" * (2 + len(shown)))
    half = np.arange(len(groups)) % 2 == 0
    for name, score in scores.items():
        limit = np.quantile(score[(groups == "held out") & half], 0.98)
        noted = [score[(groups == "held out") & ~half], *(score[groups == one] for one in shown)]
        shares = " | ".join(f"{100 * np.mean(one > limit):.1f} %" for one in noted)
        auroc = measure_auroc(score[groups == "held out"], score[groups == "other photos"])
        print(f"| {name} | {auroc:.3f} | {shares} |")


if __name__ == "__main__":
    main()
