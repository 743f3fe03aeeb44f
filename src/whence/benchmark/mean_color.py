"""Measure the mean colour of a run's photos, which deleted pixels are filled with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence._util.files import write_atomically
from whence._util.fingerprint import hash_texts
from whence._util.progress import bar
from whence.benchmark.photos import prepare_photo
from whence.errors import WhenceError
from whence.models import LoadedModel
from whence.models.image_preprocessing import PixelScale

if TYPE_CHECKING:
    from whence.datasets import Dataset

FILE = "mean_color.json"
_THREADS = 4
_AT_ONCE = 64


def measure_mean_color(
    loaded: LoadedModel, dataset: Dataset, names: Sequence[str], folder: Path | None = None
) -> tuple[float, ...]:
    """Measure the mean of photos, each as the model sees it, of each channel between 0 and 1.

    Photos that cannot be read do not count, as they do not in the benchmark. The result is kept in
    `folder`, and read from there the next time.

    Raises:
        WhenceError: No photo can be read.
    """
    scale = PixelScale.from_model(loaded)
    of = hash_texts(dataset.compute_fingerprint(), loaded.name, repr(scale), *names)
    if folder is not None and (kept := _read_color(folder / FILE, of)):
        return kept

    def read(name: str) -> Tensor | None:
        try:
            pixels = prepare_photo(loaded, dataset.read(name)).pixels
        except Exception:  # the run says what is wrong with it, when it reads the photo
            return None
        return scale.to_unit(pixels.double()).mean((1, 2))

    means: list[Tensor] = []
    with (
        ThreadPoolExecutor(_THREADS, thread_name_prefix="whence-reading") as pool,
        bar("Mean colour of the data", len(names)) as advance,
    ):
        # A part at a time, so that an interrupt need not wait for all of them.
        for at in range(0, len(names), _AT_ONCE):
            part = names[at : at + _AT_ONCE]
            means += [mean for mean in pool.map(read, part) if mean is not None]
            advance(len(part))
    if not means:
        raise WhenceError("No photo can be read, so there is no mean colour to fill pixels with.")
    color = tuple(torch.stack(means).mean(0).tolist())
    if folder is not None:
        content = {"of": of, "photos": len(means), "mean color": color}
        write_atomically(folder / FILE, (json.dumps(content, indent=2) + "\n").encode())
    return color


def _read_color(path: Path, of: str) -> tuple[float, ...] | None:
    """The colour that was kept; None if it is of other photos, or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return tuple(float(one) for one in content["mean color"]) if content["of"] == of else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
