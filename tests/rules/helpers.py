"""Relevance of single operations, and quotients as the definitions have them."""

import torch
from torch import Tensor

from whence import rules
from whence.rules import RuleSet
from whence.tracing.ops.base import Operation

RELEVANCE_SETS = ("stable", "reference", "paper")


def propagate(
    rule_set: str | RuleSet, operation: Operation, *inputs: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """A random relevance of an operation's output, and that of its inputs."""
    operation.batch = len(inputs[0])
    relevance = torch.rand_like(operation.forward(*inputs))
    return relevance, list(rules.get(rule_set).propagate(operation, relevance))


def divide_guarded(a: float, b: float, offset: float = 1e-9) -> float:
    """The authors' quotient; the stable rules move the denominator less."""
    return 0.0 if b == 0 else a / (b + offset)
