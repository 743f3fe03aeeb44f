"""Result: the scores of a batch, or of a chunk of it, before they become an Explanation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.layout import Layout, Tokens


class Result(NamedTuple):
    """What is computed of some samples.

    Attributes:
        scores: (samples, classes, units).
        classes: (samples, classes), the explained class indices.
        logits: (samples, all classes).
        layout: Where tokens stand on the input.
        tokens: The tokens of a text.
        details: What the method has to tell beside its scores, for each sample and class.
        evidence: What the method worked with, for each group of classes, if it is kept.
        sample_bytes: How much memory the backward pass of one sample takes; 0 if that is not known.
    """

    scores: Tensor
    classes: Tensor
    logits: Tensor
    layout: Layout
    tokens: Tokens | None = None
    details: list[list[dict[str, Any]]] = []
    evidence: list[Evidence] = []
    sample_bytes: float = 0.0

    def select_last(self, samples: int) -> Result:
        """The result of the last samples alone."""
        rows = slice(len(self.scores) - samples, len(self.scores))
        return self._replace(
            scores=self.scores[rows],
            classes=self.classes[rows],
            logits=self.logits[rows],
            tokens=None if self.tokens is None else self.tokens.select_samples(rows),
            details=self.details[rows],
        )

    @classmethod
    def concatenate(cls, results: list[Result]) -> Result:
        """The results of several chunks, none of which has evidence, as one."""
        if len(results) == 1:
            return results[0]
        tokens = [result.tokens for result in results if result.tokens is not None]
        return results[0]._replace(
            scores=torch.cat([result.scores for result in results]),
            classes=torch.cat([result.classes for result in results]),
            logits=torch.cat([result.logits for result in results]),
            tokens=Tokens.concatenate(tokens) if tokens else None,
            details=[one for result in results for one in result.details],
        )
