"""Copies to a GPU that wait for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def send(values: Tensor | Sequence[object], device: torch.device) -> Tensor:
    """Copy values to a device; a GPU may still compute what it was asked for before.

    A plain copy of what lies in ordinary memory waits until the GPU has done all of that.
    """
    # Lists become tensors of the CPU, whatever device the user has as a default.
    tensor = values if isinstance(values, Tensor) else torch.tensor(values, device="cpu")
    if device.type != "cuda" or tensor.is_cuda or torch.cuda.is_current_stream_capturing():
        return tensor.to(device)  # what is captured would read memory that is gone by then
    return tensor.pin_memory().to(device, non_blocking=True)
