"""What methods work with: the readings of one trace that they asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from whence.layout import Layout, pooling_weights
from whence.tracing.rules import RuleSet
from whence.tracing.trace import Trace

KINDS = ("attention", "gradient", "relevance")


@dataclass
class Evidence:
    """Readings at the attention maps, a list over layers, the one nearest the input first.

    Inside a method, gradient and relevance have the explained classes as first dimension:
    (classes, batch, heads, queries, keys), attention being (batch, heads, queries, keys). What
    ``keep_evidence=True`` returns has (batch, heads, queries, keys) for one target and
    (batch, classes, heads, queries, keys) for several classes. Lists not asked for are empty.

    Attributes:
        pooling: (classes, batch, tokens), weights of the rows that the classifier reads.
        padding: (batch, tokens), true where a token is padding; None if there is none.
        attention: The maps.
        gradient: Gradient of the class logit.
        relevance: Relevance of the class.
    """

    pooling: Tensor
    padding: Tensor | None = None
    attention: list[Tensor] = field(default_factory=list)
    gradient: list[Tensor] = field(default_factory=list)
    relevance: list[Tensor] = field(default_factory=list)


def gather(
    trace: Trace,
    kinds: Collection[str],
    classes: Tensor,
    rules: RuleSet,
    layout: Layout,
    padding: Tensor | None = None,
) -> Evidence:
    """Read the kinds of evidence asked for, with the fewest passes that give them.

    Args:
        trace: The recorded forward pass.
        kinds: Which of `KINDS`.
        classes: (batch, n) class indices.
        rules: The rules for relevance.
        layout: Where tokens stand.
        padding: Which tokens are padding.
    """
    gradient = trace.gradient(classes) if "gradient" in kinds else []
    last = gradient[-1] if gradient else trace.gradient(classes, trace.sites[-1:])[0]
    return Evidence(
        pooling=pooling_weights(last.abs().sum((-3, -1)), layout),
        padding=padding,
        attention=trace.attention() if "attention" in kinds else [],
        gradient=gradient,
        relevance=trace.relevance(classes, rules) if "relevance" in kinds else [],
    )


def joined(parts: Sequence[Evidence], one_target: bool) -> Evidence:
    """The evidence of several groups of classes in one, classes after the batch dimension."""

    def join(readings: Sequence[Tensor]) -> Tensor:
        whole = torch.cat(list(readings)).movedim(0, 1)
        return whole[:, 0] if one_target else whole

    return Evidence(
        pooling=join([part.pooling for part in parts]),
        padding=parts[0].padding,
        attention=parts[0].attention,
        gradient=[join(layer) for layer in zip(*(p.gradient for p in parts), strict=True)],
        relevance=[join(layer) for layer in zip(*(p.relevance for p in parts), strict=True)],
    )
