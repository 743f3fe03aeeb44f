"""The precision of a curve's forward passes: fewer bits where these are quicker and good enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from whence._util.torch_internals import is_any_autocast_enabled
from whence._util.torch_products import has_quick_float16
from whence.errors import WhenceError
from whence.faithfulness.photos import PhotoRunner
from whence.metrics.deletion import Run
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, use_loaded_precision

MOST_MOVED = 0.02
"""How far float16 may move the log-odds of a class on a whole photo.

Its probability is then moved by 0.5 % at most, and by less where it is near 0 or 1.
"""
# Rows of float16 that go together, for each one of float32: weights are cast for each pass.
_ROWS_IN_HALF = 3


class PhotoRun(NamedTuple):
    """What runs photos without some of their pixels, and how many rows it takes at once."""

    run: Run
    chunk_size: int


def choose_precision(
    runner: PhotoRunner,
    measure_shift: Callable[[int, Tensor], float],
    chunk_size: int | None = None,
) -> PhotoRun:
    """Choose the precision of forward passes: bfloat16 if the model was loaded so.

    Else float16 where the processor multiplies it quickly, for photos that are run as well in it;
    for others, that of the weights.

    Args:
        runner: Runs the photos.
        measure_shift: How far logits (1, classes) of a whole photo move its classes' log-odds.
        chunk_size: How many rows are run at once; chosen by device and precision if left out.
    """
    rows = choose_chunk_size(runner.loaded)
    if can_use_float16(runner.loaded):
        quick = _HalfRunner(runner)
        quick.choose_photos(measure_shift)
        if quick.is_chosen.any():
            return PhotoRun(quick, chunk_size or _ROWS_IN_HALF * rows)

    def run(deleted: Tensor, photos: Tensor) -> Tensor:
        with use_loaded_precision(runner.loaded):
            return runner(deleted, photos)

    return PhotoRun(run, chunk_size or rows)


def can_use_float16(loaded: LoadedModel) -> bool:
    """Whether a model of photos may run in float16: one in full precision, on a quick processor."""
    is_asked_for = loaded.precision is None and loaded.kind == "image"
    if not is_asked_for or torch.device(loaded.device).type != "cpu" or not has_quick_float16():
        return False
    is_full = all(weight.dtype == torch.float32 for weight in loaded.model.parameters())
    return is_full and not is_any_autocast_enabled()


class _HalfRunner:
    """Runs photos with products of float16, and again in full precision where that fails."""

    def __init__(self, runner: PhotoRunner) -> None:
        self._runner = runner
        self.is_chosen = torch.zeros(len(runner.pixels), dtype=torch.bool)

    def choose_photos(self, measure_shift: Callable[[int, Tensor], float]) -> None:
        """Choose photos that keep their probabilities in float16 while nothing is deleted."""
        nothing = torch.zeros_like(self._runner.pixels[:1, 0], dtype=torch.bool).flatten(1)
        for photo in range(len(self.is_chosen)):
            logits = self._run_in_half(nothing, torch.tensor([photo]))
            if logits is not None:
                # Not where the shift is no number, as of a probability that is 1.
                self.is_chosen[photo] = measure_shift(photo, logits) <= MOST_MOVED

    def __call__(self, deleted: Tensor, photos: Tensor) -> Tensor:
        """Logits (rows, classes), as those of a `PhotoRunner`."""
        in_half = self.is_chosen[photos]
        if not in_half.any():
            return self._runner(deleted, photos)
        if not in_half.all():
            logits = self(deleted[in_half], photos[in_half])
            others = self._runner(deleted[~in_half], photos[~in_half])
            both = others.new_empty(len(photos), others.shape[1])
            both[in_half], both[~in_half] = logits.to(others), others
            return both
        found = self._run_in_half(deleted, photos)
        return self._runner(deleted, photos) if found is None else found

    def _run_in_half(self, deleted: Tensor, photos: Tensor) -> Tensor | None:
        """Logits by products of float16; None if it does not hold them or what the model needs."""
        try:
            # Autocast would keep weights for all threads, whatever type each of them computes in.
            with torch.autocast("cpu", torch.float16, cache_enabled=False):
                logits = self._runner(deleted, photos)
        except WhenceError:
            raise
        except Exception:  # the model's own, which may not take numbers of this type
            return None
        return logits if logits.isfinite().all() else None
