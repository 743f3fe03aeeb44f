"""Explanations of a batch in parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.layout import Layout, Tokens


class Part(NamedTuple):
    """The explanation of some samples of a batch.

    Attributes:
        scores: (samples, classes, units).
        indices: (samples, classes), the explained class indices.
        logits: (samples, all classes).
        layout: Where tokens stand on the input.
        tokens: The tokens of a text.
        told: What the method has to tell beside its scores.
        evidence: What it worked with, if that is kept.
        doubt: A single truth value, whether all this can be trusted, and what computes it if not.
    """

    scores: Tensor
    indices: Tensor
    logits: Tensor
    layout: Layout
    tokens: Tokens | None
    told: list[list[dict[str, Any]]]
    evidence: list[Evidence]
    doubt: tuple[Tensor, Callable[[], Part]] | None = None

    def sound(self) -> Part:
        """This, or what is computed in its place if it turns out that it cannot be trusted."""
        return self if self.doubt is None or bool(self.doubt[0]) else self.doubt[1]()

    def last(self, samples: int) -> Part:
        """The explanation of the last samples alone."""
        rows = slice(len(self.scores) - samples, len(self.scores))
        return self._replace(
            scores=self.scores[rows],
            indices=self.indices[rows],
            logits=self.logits[rows],
            tokens=None if self.tokens is None else self.tokens.select_samples(rows),
            told=self.told[rows],
        )

    @classmethod
    def joined(cls, parts: list[Part]) -> Part:
        """Several parts, none of which has evidence, as one."""
        if len(parts) == 1:
            return parts[0]
        scores, indices, logits = (
            torch.cat([part[number] for part in parts])  # type: ignore[misc]
            for number in range(3)
        )
        tokens = [part.tokens for part in parts if part.tokens is not None]
        told = [one for part in parts for one in part.told]
        joined = Tokens.concatenate(tokens) if tokens else None
        return cls(scores, indices, logits, parts[0].layout, joined, told, [])


def even(samples: int, most: int) -> int:
    """The size of the fewest parts of at most so many samples that are nearly equal."""
    return math.ceil(samples / math.ceil(samples / max(1, most)))
