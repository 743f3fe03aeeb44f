"""Measure how surely a model classifies the photos of a run, kept in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from whence._util.files import is_file, write_atomically
from whence._util.fingerprint import hash_texts, hash_weights
from whence._util.progress import bar
from whence.benchmark.labels import LabelMapping
from whence.benchmark.photos import PreparedPhoto, compute_by_shape, prepare_photo
from whence.errors import WhenceError
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, compute_logits, stack_on_device
from whence.targets import to_probabilities

if TYPE_CHECKING:
    from whence.datasets import Dataset

_FILE = "confidences.json"
_THREADS = 4
# After so many photos the file is written, so that a run that was stopped has lost few.
_SAVED_AFTER = 256


class Confidence(NamedTuple):
    """The class that a model predicts for a photo, its probability, and the photo's true class."""

    predicted: int
    probability: float
    label: int | None

    @property
    def is_wrong(self) -> bool:
        """Whether the true class is known to be another."""
        return self.label is not None and self.label != self.predicted


def measure_confidences(
    loaded: LoadedModel,
    dataset: Dataset,
    names: Sequence[str],
    labels: LabelMapping,
    folder: Path | None = None,
) -> dict[str, Confidence]:
    """Run the model on photos, once: confidences by their names, without those that cannot be used.

    What a folder holds of an earlier pass, of the same model and data, is not computed again.

    Raises:
        WhenceError: No photo can be used; it says why of the first.
    """
    file = None if folder is None else folder / _FILE
    key = hash_texts(
        hash_weights(loaded.model),
        str(loaded.precision),
        dataset.compute_fingerprint(),
        json.dumps(dict(labels.given)),
    )
    found = {} if file is None else _read_confidences(file, key)
    missing = [name for name in names if name not in found]
    size = choose_chunk_size(loaded, is_watched=True)

    problems: dict[str, WhenceError] = {}

    def read(name: str) -> tuple[PreparedPhoto, int | None] | None:
        try:
            sample = dataset.read(name)
            return prepare_photo(loaded, sample), labels.find_index(loaded, sample)
        except WhenceError as error:  # the run says so, when it comes to this photo
            problems[name] = error
            return None

    def compute(photos: list[PreparedPhoto]) -> list[tuple[float, int]]:
        pixels = stack_on_device([one.pixels for one in photos], loaded.device)
        highest, classes = to_probabilities(compute_logits(loaded, pixels).double()).max(-1)
        return list(zip(highest.tolist(), classes.tolist(), strict=True))

    unsaved = 0
    with (
        ThreadPoolExecutor(_THREADS, thread_name_prefix="whence-reading") as pool,
        bar("Finding confident photos", len(missing)) as advance,
    ):
        for at in range(0, len(missing), size):
            chunk = missing[at : at + size]
            usable = [one for one in pool.map(read, chunk) if one is not None]
            with torch.no_grad():
                computed = compute_by_shape([photo for photo, _ in usable], compute)
            for (photo, label), (probability, predicted) in zip(usable, computed, strict=True):
                found[photo.name] = Confidence(predicted, probability, label)
            unsaved += len(chunk)
            if file is not None and (unsaved >= _SAVED_AFTER or at + size >= len(missing)):
                _write(file, key, found)
                unsaved = 0
            advance(len(chunk))
    usable_names = [name for name in names if name in found]
    if not usable_names and problems:
        raise next(problems[name] for name in names if name in problems)
    return {name: found[name] for name in usable_names}


def _read_confidences(file: Path, key: str) -> dict[str, Confidence]:
    """Read what is known of the same model and data; nothing if the file is of others."""
    if is_file(file):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["key"] == key:
                return {name: Confidence(*one) for name, one in content["photos"].items()}
    return {}


def _write(file: Path, key: str, found: Mapping[str, Confidence]) -> None:
    # As ASCII, since names of files need not be text.
    write_atomically(file, json.dumps({"key": key, "photos": found}).encode())
