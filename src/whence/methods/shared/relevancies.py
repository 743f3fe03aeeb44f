"""Relevancies of sequences of tokens for each other: GAE's rules 6 to 11."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whence.methods.shared.attention_maps import normalize_rows

ZeroRows = Literal["identity", "drop", "refuse"]
"""What 0/0 gives where a row of R - I is to be divided by its sum, which is 0."""
Pair = tuple[int, int]


@dataclass(frozen=True)
class RelevancyRules:
    """How relevancies pass attention.

    Attributes:
        normalize: Whether rule 10 takes the relevancy within a sequence with its rows normalized.
        apply_self: Whether rule 10 takes the relevancy within the sequences at all.
        zero_rows: What a row of zeros does there, which cannot be normalized.
        aggregate: Whether an attention adds to what was before it, or takes its place. If not,
            nothing is normalized.
    """

    normalize: bool = True
    apply_self: bool = True
    zero_rows: ZeroRows = "identity"
    aggregate: bool = True

    @property
    def divides(self) -> bool:
        """Whether rows are divided by their sums."""
        return self.normalize and self.apply_self and self.aggregate


class Relevancies:
    """The relevancy of the tokens of each sequence for the tokens of each other sequence.

    The relevancy R of a pair (s, q) is how much tokens of s depend on tokens of q. It is kept
    without the identity from which it starts where s is q.

    Attributes:
        rules: How they pass attention.
        real: (batch, tokens) by sequence, true where a token is no padding; all if left out.
        moved: (..., tokens of s, tokens of q) by the pair, what attention added; missing ones are
            zero.
        undefined: (...), true where a row of zeros was to be normalized; None if none could be.
    """

    def __init__(
        self, rules: RelevancyRules | None = None, real: Mapping[int, Tensor] | None = None
    ) -> None:
        self.rules = rules or RelevancyRules()
        self.real = real or {}
        self.moved: dict[Pair, Tensor] = {}
        self.undefined: Tensor | None = None
        self._replaced: set[Pair] = set()

    def pass_concurrent(self, attentions: list[tuple[int, int, Tensor]]) -> None:
        """Let relevancies pass attentions of which none reads what another one writes.

        Args:
            attentions: The sequence of the queries, that of the keys, and the map of each, (...,
                queries, keys).
        """
        total: dict[Pair, Tensor] = {}
        for s, q, added in attentions:
            steps = self._step_within(s, added) if s == q else self._step_across(s, q, added)
            for pair, step in steps.items():
                total[pair] = total[pair] + step if pair in total else step
        for pair, step in total.items():
            if self.rules.aggregate and pair in self.moved:
                step = self.moved[pair] + step
            self.moved[pair] = step
        if not self.rules.aggregate:
            self._replaced.update(total)

    def _step_within(self, s: int, added: Tensor) -> dict[Pair, Tensor]:
        """Rules 6 and 7: what a self-attention adds to each relevancy of its sequence."""
        others = {q for of, q in self.moved if of == s}
        return {(s, q): self._multiply(added, (s, q)) for q in {s, *others}}

    def _step_across(self, s: int, q: int, added: Tensor) -> dict[Pair, Tensor]:
        """Rules 10 and 11: what the attention of one sequence to another adds."""
        steps = {(s, q): self._apply_rule_10(s, q, added)}
        for of, other in self.moved:
            if of == q and other != q:
                steps[s, other] = added @ self.moved[of, other]
        return steps

    def _apply_rule_10(self, s: int, q: int, added: Tensor) -> Tensor:
        if not self.rules.apply_self:
            return added
        step = self._multiply(added, (q, q), self.rules.divides)
        step = self._multiply(step.mT, (s, s), self.rules.divides).mT
        if self.rules.divides and self.rules.zero_rows != "identity":
            undefined = self._find_zero_rows((s, s), added) | self._find_zero_rows((q, q), added)
            known = self.undefined
            self.undefined = undefined if known is None else known | undefined
            step = step.masked_fill(undefined[..., None, None], 0)
        return step

    def _multiply(self, factor: Tensor, pair: Pair, normalized: bool = False) -> Tensor:
        """A factor times the relevancy of a pair, of which something is known."""
        moved = self.moved.get(pair)
        if moved is None:
            return factor
        step = factor @ (normalize_rows(moved) if normalized else moved)
        return factor + step if self._has_identity(pair) else step

    def _has_identity(self, pair: Pair) -> bool:
        """Whether the identity is still a term of a relevancy."""
        return pair[0] == pair[1] and pair not in self._replaced

    def _find_zero_rows(self, pair: Pair, added: Tensor) -> Tensor:
        """Whether what was added to the relevancy of a pair has a row of zeros: (...)."""
        moved = self.moved.get(pair)
        if moved is None:
            return torch.ones(added.shape[:-2], dtype=torch.bool, device=added.device)
        empty, real = moved.sum(-1) == 0, self.real.get(pair[0])
        return (empty if real is None else empty & real).any(-1)
