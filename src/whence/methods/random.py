"""Random scores: a baseline that any explanation should beat."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.random import SeededRandom
from whence.evidence import Evidence
from whence.methods.registry import Method, register


@register("random")
@dataclass(frozen=True)
class Random(Method):
    """Random scores between 0 and 1, independent of the model: a baseline.

    The i-th token without padding gets the i-th number of the generator, in every sample and for
    every class.

    Attributes:
        seed: Seed of the generator.
    """

    cost = "1"
    class_specific = False

    seed: int = 0

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        drawn = SeededRandom(self.seed).draw_uniform(evidence.tokens, dtype=torch.float64)
        positions = (evidence.token_mask.cumsum(1) - 1).clamp(min=0)
        scores = drawn.to(evidence.logits)[positions]
        return scores.expand(evidence.targets.count, -1, -1)
