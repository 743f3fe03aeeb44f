"""Places: where tokens are in the graph, and how those of two places depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from whence._util.torch_internals import output_metadata
from whence.errors import WhenceError
from whence.tracing.marks import compact

# So many elements may be marked at once, over all tokens, where each token has marks of its own.
_MARKS_AT_ONCE = 2**23
# Into so many groups tokens are divided, one after the other, until none overlap within a group.
GROUPS = (1, 2, 3, 5, 7, 11, 13)


@dataclass(frozen=True)
class TokenIndex:
    """The token that each element of a value belongs to.

    Attributes:
        samples: The sample of each element, in the shape of the value, with a length of 1 along
            dimensions that do not matter.
        tokens: The token of each element, likewise; -1 if of none.
        batch: Number of samples.
        count: Number of tokens of a sample.
    """

    samples: Tensor
    tokens: Tensor
    batch: int
    count: int

    @cached_property
    def numbers(self) -> Tensor:
        """Sample and token of each element as one number; one more than all if of no token."""
        numbers = self.samples * self.count + self.tokens
        return torch.where(self.tokens < 0, self.batch * self.count, numbers)

    def reduce(self, values: Tensor, how: Literal["amax", "sum"]) -> Tensor:
        """Reduce values, (n, ...), over the elements of each token: (n, batch, tokens)."""
        shape = self.numbers.shape
        alike = [d + 1 for d, length in enumerate(shape) if length == 1 < values.shape[d + 1]]
        if alike:
            values = values.amax(alike, True) if how == "amax" else values.sum(alike, True)
        values = values.expand(len(values), *shape).reshape(len(values), -1)
        flat = self.numbers.to(values.device).reshape(1, -1).expand(len(values), -1)
        whole = values.new_zeros(len(values), self.batch * self.count + 1)
        whole = whole.scatter_reduce(1, flat, values, how)
        return whole[:, :-1].reshape(len(values), self.batch, self.count)

    def to_rows(self, values: Tensor) -> Tensor:
        """Values, (n, ...), as (n, batch, tokens, rest).

        Raises:
            WhenceError: Some tokens have more elements than others.
        """
        shape = self.numbers.shape
        outer = [d for d, length in enumerate(shape) if length > 1]
        inner = [d for d, length in enumerate(shape) if length == 1]
        moved = values.permute(0, *(d + 1 for d in outer), *(d + 1 for d in inner))
        moved = moved.reshape(len(values), shape.numel(), -1)
        order, each = self._element_order
        rows = moved.index_select(1, order.to(moved.device))
        return rows.reshape(len(values), self.batch, self.count, each * moved.shape[2])

    @cached_property
    def _element_order(self) -> tuple[Tensor, int]:
        """Elements ordered by their tokens, and how many each token has."""
        flat = self.numbers.reshape(-1)
        known = flat < self.batch * self.count
        counts = torch.bincount(flat[known], minlength=self.batch * self.count)
        each = int(counts.max())
        if not bool((counts == each).all()):
            raise WhenceError(
                "Some tokens of a layer have more hidden states than others, so that this method "
                "cannot read them. Methods that read the attention maps alone, such as 'gae', work."
            )
        order = flat.argsort(stable=True)
        return order[: each * len(counts)], each


@dataclass(frozen=True)
class TokenPlace:
    """Where tokens are in the graph.

    Attributes:
        edge: The place.
        index: The token that each element there belongs to.
    """

    edge: GradientEdge
    index: TokenIndex

    @property
    def count(self) -> int:
        """Number of tokens of a sample."""
        return self.index.count

    def make_seed(self, chosen: Tensor) -> Tensor:
        """Marks of the place, (choices, ...), given choices of tokens, (choices, tokens)."""
        return self._spread(chosen, self.index.tokens)

    def make_sample_seed(self) -> Tensor:
        """Marks of the place, (samples, ...): all tokens of each sample."""
        tokens = self.index.tokens
        every = torch.eye(self.index.batch, dtype=torch.bool, device=tokens.device)
        return self._spread(every, torch.where(tokens < 0, -1, self.index.samples))

    def _spread(self, chosen: Tensor, numbers: Tensor) -> Tensor:
        like = output_metadata(self.edge.node)[self.edge.output_nr]
        padded = torch.cat([chosen, chosen.new_zeros(len(chosen), 1)], 1)
        return padded.to(like.dtype)[:, numbers].expand(len(chosen), *like.shape)

    def collect(self, marks: Tensor) -> Tensor:
        """Which tokens are marked, (choices, batch, tokens), given marks of the place."""
        return self.index.reduce((compact(marks) > 0).to(torch.int8), "amax") > 0


Mark = Callable[[Tensor], list[Tensor | None]]
"""Gives marks, (choices, batch, tokens), at several places, given choices of tokens."""


def relate(mark: Mark, count: int, size: int, device: torch.device) -> list[Tensor]:
    """Find which tokens at several places upstream the tokens of a place depend on.

    Args:
        mark: Marks tokens at these places, given choices, (choices, tokens), of the first.
        count: Number of tokens of a sample.
        size: Number of elements that are marked at once for each choice.
        device: Where marks are.

    Returns:
        For each place upstream, (n, 4): sample, token, token upstream and the weight 1.
    """
    for groups in GROUPS:
        found = _relate_disjoint(mark, count, groups, device)
        if found is not None:
            return found
    each = torch.eye(count, dtype=torch.bool, device=device)
    at_once = max(1, _MARKS_AT_ONCE // max(1, size))
    parts: list[list[Tensor]] = []
    for start in range(0, count, at_once):
        for number, marks in enumerate(mark(each[start : start + at_once])):
            while len(parts) <= number:
                parts.append([])
            if marks is not None:
                token, sample, upstream = marks.cpu().nonzero().unbind(1)
                parts[number].append(_make_relation(sample, token + start, upstream))
    return [torch.cat(one) if one else _EMPTY for one in parts]


_EMPTY = torch.zeros(0, 4, dtype=torch.float64)


def _relate_disjoint(
    mark: Mark, count: int, groups: int, device: torch.device
) -> list[Tensor] | None:
    """The same where tokens upstream belong to one token each within groups of tokens.

    A token is in the group of its number modulo the number of groups, so that neighbours, which may
    overlap, are in different ones. In a group, the marks of a token upstream are the number of its
    token in binary: two choices of tokens for each bit, in place of one for each token.
    """
    bits = max(1, (count - 1).bit_length())
    if groups > 1 and 2 * bits * groups >= count:
        return None
    powers, numbers = torch.arange(bits, device=device), torch.arange(count, device=device)
    has_bit = (numbers >> powers[:, None]) & 1 == 1
    found: list[list[Tensor]] = []
    for group in range(groups):
        chosen = numbers % groups == group
        for number, marks in enumerate(mark(torch.cat([has_bit & chosen, ~has_bit & chosen]))):
            while len(found) <= number:
                found.append([])
            if marks is None:
                continue
            ones, zeros = marks[:bits].cpu(), marks[bits:].cpu()
            if bool((ones & zeros).any()):
                return None
            owner = (ones.long() << torch.arange(bits).reshape(-1, 1, 1)).sum(0)
            sample, upstream = (ones[0] | zeros[0]).nonzero().unbind(1)
            found[number].append(_make_relation(sample, owner[sample, upstream], upstream))
    return [torch.cat(one) if one else _EMPTY for one in found]


def _make_relation(sample: Tensor, token: Tensor, upstream: Tensor) -> Tensor:
    return torch.stack([sample, token, upstream, torch.ones_like(sample)], 1).double()
