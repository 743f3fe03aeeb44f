"""Targets of both signs, for rules that scale values by their sums.

Relevance of "A and not B" starts with 1 at A and -1 at B. Rules that keep the sum of relevance
would keep its 0. Under such rules, both signs are propagated apart, and then subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from whence.tracing.ops.base import BackwardRules
from whence.tracing.ops.guard import Guard


class SeedPart(NamedTuple):
    """Where a backward pass starts under a rule set.

    Attributes:
        seeds: The values there.
        rules: The rule set.
        is_subtracted: Whether its results are to be subtracted from those of the part before.
    """

    seeds: Tensor
    rules: BackwardRules | None
    is_subtracted: bool = False


def split_signs(
    seeds: Sequence[Tensor], rules: Sequence[BackwardRules | None], guard: Guard
) -> Iterator[SeedPart]:
    """The seeds of each rule set, those below zero apart where it scales by sums."""
    for one, rule_set in zip(seeds, rules, strict=True):
        scales = rule_set is not None and rule_set.scales_by_sums
        if scales and guard.look_at((one < 0).any()):
            yield SeedPart(one.clamp(min=0), rule_set)
            yield SeedPart(-one.clamp(max=0), rule_set, is_subtracted=True)
        else:
            yield SeedPart(one, rule_set)


def join_signs(parts: Sequence[SeedPart], values: Sequence[Tensor]) -> list[Tensor]:
    """One value for each rule set, of one for each part."""
    joined: list[Tensor] = []
    for part, value in zip(parts, values, strict=True):
        if part.is_subtracted:
            joined[-1] = joined[-1] - value
        else:
            joined.append(value)
    return joined
