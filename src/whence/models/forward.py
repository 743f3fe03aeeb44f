"""Plain forward passes of a model, in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.models import LoadedModel
from whence.tracing.trace import find_logits

# Rows that go through the model together, if memory allows.
_ON_A_GPU, _ON_A_CPU = 256, 32


class MemoryShortError(WhenceError):
    """Too little memory: no fault of a sample."""


def rows_at_once(loaded: LoadedModel) -> int:
    """How many rows a forward pass should have to keep the device busy."""
    return _ON_A_CPU if torch.device(loaded.device).type == "cpu" else _ON_A_GPU


@torch.no_grad()
def logits_of(loaded: LoadedModel, inputs: Tensor | Mapping[str, Any]) -> Tensor:
    """Logits of a batch, (rows, classes)."""
    if isinstance(inputs, Tensor):
        return find_logits(loaded.model(inputs)).detach()
    return find_logits(loaded.model(**inputs)).detach()


def in_parts(
    count: int, at_once: int, work: Callable[[range], Tensor], device: torch.device | str
) -> Tensor:
    """Results of work on ranges of 0 … count, joined; ranges are halved where memory is short.

    Raises:
        MemoryShortError: Memory is too small for a single one.
    """
    results: list[Tensor] = []
    done = 0
    while done < count:
        part = range(done, min(done + at_once, count))
        try:
            results.append(work(part))
        except torch.OutOfMemoryError:
            if len(part) == 1:
                raise MemoryShortError("The device's memory is too small for this model.") from None
            at_once = len(part) // 2
            if torch.device(device).type == "cuda":
                torch.cuda.empty_cache()
            continue
        done = part.stop
    return torch.cat(results)


def on_device(pixels: Sequence[Tensor], device: torch.device | str) -> Tensor:
    """A batch of photos on the model's device, copied while the device works."""
    stacked = torch.stack(list(pixels))
    if torch.device(device).type == "cuda":
        return stacked.pin_memory().to(device, non_blocking=True)
    return stacked.to(device)
