"""Do peak regions lie on the animal, and does noise get any? Photos with known outlines.

    WHENCE_DATA=... python benchmarks/regions.py [--photos 200]

Each method explains the embedded model's decision for photos of cats and dogs that it was not
trained on. Maps with peak regions are counted. Of these: the share of the photo and of
the evidence that all its regions hold, how much of their area lies on the animal, and how often the
middle of the first region does; patches on the animal's border count by the pixels that are inside.
Noise of several kinds is arranged on grids of several sizes. All is seeded; tables are Markdown.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from whence.explanation.regions import PeakRegion, find_regions
from whence.models import load

METHODS = (
    *("whence", "gae", "tiba", "lrp", "gradcam", "rollout", "attnlrp", "input_x_gradient"),
    "random",
)
NOISE = ("normal", "uniform", "exponential", "lognormal")
SIDES, DRAWS, BATCH = (7, 14, 16, 32), 400, 10


def read_animal(file: Path, shape: tuple[int, int]) -> NDArray[np.float64]:
    """The share of each patch that is animal; the border of unknown pixels counts as half."""
    trimap = np.asarray(Image.open(file))
    inside = np.where(trimap == 1, 1.0, np.where(trimap == 3, 0.5, 0.0)).astype(np.float32)
    patches = Image.fromarray(inside).resize((shape[1], shape[0]), Image.Resampling.BOX)
    return np.asarray(patches, dtype=np.float64)


def has_animal_at(animal: NDArray[np.float64], region: PeakRegion) -> bool:
    rows, columns = animal.shape
    x, y = region.center
    return bool(animal[min(int(y * rows), rows - 1), min(int(x * columns), columns - 1)] >= 0.5)


def measure_method(method: str, folder: Path, names: list[str]) -> str:
    loaded, figures = load(None, "image"), []
    for start in range(0, len(names), BATCH):
        chosen = names[start : start + BATCH]
        photos = [Image.open(folder / "images" / f"{n}.jpg").convert("RGB") for n in chosen]
        result = loaded.explain(loaded.prepare(photos), method=method)
        for sample, name in enumerate(chosen):
            assert result.grid is not None
            animal = read_animal(folder / "trimaps" / f"{name}.png", result.grid)
            regions = result.regions(sample)
            if not regions:
                continue
            union = np.any([region.mask for region in regions], axis=0)
            held = sum(region.evidence for region in regions)
            hit = has_animal_at(animal, regions[0])
            figures.append((len(regions), union.mean(), held, animal[union].mean(), hit))
    found = len(figures) / len(names)
    if not figures:
        return f"| `{method}` | {100 * found:.0f} % | | | | | |"
    count, area, held, inside, hit = np.mean(figures, axis=0)
    shares = " | ".join(f"{100 * share:.0f} %" for share in (area, held, inside, hit))
    return f"| `{method}` | {100 * found:.0f} % | {count:.1f} | {shares} |"


def measure_noise(kind: str, side: int) -> float:
    """The share of maps of noise that have peak regions."""
    random = np.random.default_rng(side)
    maps = [getattr(random, kind)(size=(side, side)) for _ in range(DRAWS)]
    return sum(bool(find_regions(one)) for one in maps) / DRAWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=200)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = Path(os.environ["WHENCE_DATA"]) / "pets"
    names = sorted(file.stem for file in (folder / "images").glob("*.jpg"))
    random = np.random.default_rng(0)
    names = [names[n] for n in random.permutation(len(names))[: options.photos]]
    columns = "maps with regions | regions | area | evidence | area on the animal | middle on it"
    print(f"| method | {columns} |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for method in METHODS:
        print(measure_method(method, folder, names), flush=True)
    grid = (16, 16)
    animals = [read_animal(folder / "trimaps" / f"{name}.png", grid).mean() for name in names]
    print(f"\nThe animal is {100 * np.mean(animals):.0f} % of a photo on average.\n")
    print(f"| noise | {' | '.join(f'{side} x {side}' for side in SIDES)} |")
    print("| --- |" + " ---: |" * len(SIDES))
    for kind in NOISE:
        shares = " | ".join(f"{100 * measure_noise(kind, side):.2f} %" for side in SIDES)
        print(f"| {kind} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
