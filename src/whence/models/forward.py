"""Run a loaded model on a batch without explaining it: logits, batch sizes, pinned copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from whence._util.torch_products import use_quick_products
from whence.errors import WhenceError
from whence.models import LoadedModel
from whence.models.dense import DENSE_TASKS, find_dense_task
from whence.tracing import find_logits
from whence.tracing.ops.products import use_precision

# Rows that go through the model together, if memory allows.
_ON_A_GPU, _ON_A_CPU = 256, 32
# Where someone watches how far the work has come, a pass on a CPU is to take a moment only.
_WATCHED_ON_A_CPU = 8
# Photos, or the like, for each thread of a CPU: activations of so few stay in its cache.
_PHOTOS_OF_A_THREAD = 4


def choose_chunk_size(loaded: LoadedModel, is_watched: bool = False) -> int:
    """Choose how many rows a forward pass has, so that the device is busy."""
    if torch.device(loaded.device).type != "cpu":
        return _ON_A_GPU
    most = _WATCHED_ON_A_CPU if is_watched else _ON_A_CPU
    if loaded.kind == "text":
        return most
    return min(most, _PHOTOS_OF_A_THREAD * torch.get_num_threads())


@torch.no_grad()
def compute_logits(loaded: LoadedModel, inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
    """Compute the logits of a batch, (rows, classes), in TF32 if the model was loaded so.

    Raises:
        WhenceError: The model has none of whole photos, as detectors have not.
    """
    if (task := find_dense_task(loaded.model)) is not None:
        raise WhenceError(
            f"'{loaded.title}' {DENSE_TASKS[task]}, and has no classes of whole photos that could "
            f"be watched. `whence explain` explains its boxes or places."
        )
    precision = use_precision("tf32" if loaded.precision == "tf32" else None)
    with precision, use_quick_products(loaded.device):
        return find_logits(loaded.run(inputs)).detach()


@contextmanager
def use_loaded_precision(loaded: LoadedModel) -> Iterator[None]:
    """Let plain forward passes compute products in bfloat16, if the model was loaded so."""
    if loaded.precision != "bfloat16":
        yield
        return
    # Autocast would keep weights for all threads, whatever type each of them computes in.
    with torch.autocast(torch.device(loaded.device).type, torch.bfloat16, cache_enabled=False):
        yield


def stack_on_device(pixels: Sequence[Tensor], device: torch.device | str) -> Tensor:
    """Stack photos to a batch on the model's device, copied while the device works."""
    stacked = torch.stack(list(pixels))
    if torch.device(device).type == "cuda":
        return stacked.pin_memory().to(device, non_blocking=True)
    return stacked.to(device)
