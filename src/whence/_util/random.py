"""Random numbers that depend on a seed alone: not on defaults for devices and types."""

from __future__ import annotations

import torch
from torch import Tensor


class Chance:
    """Draws on the CPU, numbers in single precision; the global generator is left alone.

    Args:
        seed: Where random numbers start.
    """

    def __init__(self, seed: int) -> None:
        self._source = torch.Generator("cpu").manual_seed(seed)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers between 0 and 1."""
        return torch.rand(shape, generator=self._source, device="cpu", dtype=dtype)

    def normal(self, *shape: int) -> Tensor:
        """Numbers of a standard normal distribution."""
        return torch.randn(shape, generator=self._source, device="cpu", dtype=torch.float32)

    def below(self, limit: int, count: int) -> list[int]:
        """Whole numbers from 0 to below a limit."""
        drawn = torch.randint(limit, (count,), generator=self._source, device="cpu")
        return [int(one) for one in drawn]

    def some(self, count: int, of: int) -> list[int]:
        """Different whole numbers from 0 to below a limit, in order."""
        drawn = torch.randperm(of, generator=self._source, device="cpu")[:count]
        return sorted(int(one) for one in drawn)
