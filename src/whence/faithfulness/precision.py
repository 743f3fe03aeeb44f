"""The precision of a curve's forward passes: fewer bits where these are quicker and good enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from whence._util.torch_products import has_quick_float16
from whence.faithfulness.photos import PhotoRunner
from whence.metrics.deletion import Run
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, use_loaded_precision

MOST_MOVED = 0.005
"""How far float16 may move the probability of a whole photo.

If it moved every step of both curves as far, the score would move by less than one point.
"""
# Rows of float16 that go together, for each one of float32: weights are read less often.
_ROWS_IN_HALF = 3


class PhotoRun(NamedTuple):
    """What runs photos without some of their pixels, and how many rows it takes at once."""

    run: Run
    chunk_size: int


@contextmanager
def use_curve_precision(
    runner: PhotoRunner, find_moved: Callable[[Tensor], float]
) -> Iterator[PhotoRun]:
    """Choose the precision of forward passes, and use it until the block ends.

    That is bfloat16 if the model was loaded so. It is float16 where the processor multiplies that
    quickly, unless whole photos already get other probabilities. Else it is that of the weights.

    Args:
        runner: Runs the photos.
        find_moved: How far logits of the whole photos (photos, classes) move a probability.
    """
    loaded = runner.loaded
    rows = choose_chunk_size(loaded)
    if can_use_float16(loaded):
        with torch.autocast("cpu", torch.float16):
            if _is_good_enough(runner, find_moved):
                yield PhotoRun(_FiniteRunner(runner), _ROWS_IN_HALF * rows)
                return
    with use_loaded_precision(loaded):
        yield PhotoRun(runner, rows)


def can_use_float16(loaded: LoadedModel) -> bool:
    """Whether a model of photos may run in float16: one in full precision, on a quick processor."""
    is_asked_for = loaded.precision is None and loaded.kind == "image"
    if not is_asked_for or torch.device(loaded.device).type != "cpu" or not has_quick_float16():
        return False
    return all(weight.dtype == torch.float32 for weight in loaded.model.parameters())


def _is_good_enough(runner: PhotoRunner, find_moved: Callable[[Tensor], float]) -> bool:
    """Whether float16 gives whole photos nearly the probabilities of full precision."""
    photos = torch.arange(len(runner.pixels))
    nothing = torch.zeros(len(photos), runner.pixels[0, 0].numel(), dtype=torch.bool)
    try:
        logits = runner(nothing, photos)
    except RuntimeError:  # an operation that float16 lacks, or factors of two types
        return False
    return find_moved(logits) <= MOST_MOVED  # not if it is no number


class _FiniteRunner:
    """Runs photos in float16, and again in full precision where numbers grow beyond it."""

    def __init__(self, runner: PhotoRunner) -> None:
        self._runner = runner

    def __call__(self, deleted: Tensor, photos: Tensor) -> Tensor:
        logits = self._runner(deleted, photos)
        if logits.isfinite().all():
            return logits
        with torch.autocast("cpu", enabled=False):
            return self._runner(deleted, photos)
