"""Random numbers that depend on a seed alone: not on default devices and types."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class SeededRandom:
    """Draws random numbers on the CPU; the global generator is left alone.

    Args:
        seed: Of the generator.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def draw_uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw numbers between 0 and 1."""
        return torch.rand(shape, generator=self._generator, device="cpu", dtype=dtype)

    def draw_normal(self, *shape: int) -> Tensor:
        """Draw numbers of a standard normal distribution, in single precision."""
        return torch.randn(shape, generator=self._generator, device="cpu", dtype=torch.float32)

    def draw_words(self, *shape: int) -> Tensor:
        """Draw integers of 64 bits."""
        limits = torch.iinfo(torch.int64)
        return torch.randint(limits.min, limits.max, shape, generator=self._generator, device="cpu")

    def draw_integers(self, limit: int, count: int) -> list[int]:
        """Draw integers from 0 to below a limit."""
        drawn = torch.randint(limit, (count,), generator=self._generator, device="cpu")
        return [int(one) for one in drawn]

    def draw_subset(self, count: int, limit: int) -> list[int]:
        """Draw different integers from 0 to below a limit, in rising order."""
        drawn = torch.randperm(limit, generator=self._generator, device="cpu")[:count]
        return sorted(int(one) for one in drawn)


def make_seed(*parts: object) -> int:
    """Make a seed of anything that has a text, such as another seed and a name."""
    listed = "\0".join(map(str, parts)).encode("utf-8", "replace")
    return int.from_bytes(hashlib.sha256(listed).digest()[:6], "big")
