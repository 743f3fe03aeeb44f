"""Token maps: sparse linear maps from the tokens of one place to those of another upstream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenMap:
    """Which tokens upstream the tokens of a place are made of, with weights, for each sample.

    Attributes:
        tokens: Numbers of tokens of the place, counted over the whole batch.
        upstream: As many numbers of tokens upstream, likewise.
        weights: As many weights; those of a token sum to 1 over all that it is made of.
        shape: The number of samples, of tokens and of tokens upstream.
        is_identity: Whether each token is made of the one of the same number.
    """

    tokens: Tensor
    upstream: Tensor
    weights: Tensor
    shape: tuple[int, int, int]
    is_identity: bool = False

    def pull(self, rows: Tensor) -> Tensor:
        """Multiply rows, (..., batch, tokens), by the map: (..., batch, tokens upstream)."""
        return self._multiply(rows, self.tokens, self.upstream, self.shape[2])

    def push(self, columns: Tensor) -> Tensor:
        """Multiply the map by columns, (..., batch, tokens upstream): (..., batch, tokens)."""
        return self._multiply(columns, self.upstream, self.tokens, self.shape[1])

    def _multiply(self, values: Tensor, read: Tensor, written: Tensor, count: int) -> Tensor:
        if self.is_identity:
            return values
        flat = values.flatten(-2)
        device = flat.device
        moved = flat.index_select(-1, read.to(device)) * self.weights.to(device, flat.dtype)
        whole = flat.new_zeros(*flat.shape[:-1], self.shape[0] * count)
        whole = whole.index_add(-1, written.to(device), moved)
        return whole.reshape(*flat.shape[:-1], self.shape[0], count)

    def compose(self, further: TokenMap) -> TokenMap:
        """The map from the tokens of this place to those that another map leads to."""
        if self.is_identity:
            return further
        if further.is_identity:
            return self
        batch, count = self.shape[:2]
        order = further.tokens.argsort()
        lengths = torch.bincount(further.tokens, minlength=batch * further.shape[1])
        starts = lengths.cumsum(0) - lengths
        # Each entry of this map is repeated for all entries of the token that it leads to.
        repeats = lengths[self.upstream]
        entry = torch.repeat_interleave(repeats)
        before = (repeats.cumsum(0) - repeats)[entry]
        within = torch.arange(len(entry), device=entry.device) - before
        chosen = order[starts[self.upstream[entry]] + within]
        weights = self.weights[entry] * further.weights[chosen]
        pairs = self.tokens[entry] * batch * further.shape[2] + further.upstream[chosen]
        unique, number = torch.unique(pairs, return_inverse=True)
        summed = weights.new_zeros(len(unique)).index_add(0, number, weights)
        tokens, upstream = unique // (batch * further.shape[2]), unique % (batch * further.shape[2])
        return TokenMap(tokens, upstream, summed, (batch, count, further.shape[2]))


def make_maps(
    relations: Sequence[tuple[Tensor, int]], batch: int, count: int, device: torch.device
) -> list[TokenMap]:
    """Maps of one place to several upstream, of which tokens are the mean.

    Args:
        relations: For each place upstream, (n, 4): sample, token, token upstream and weight; and
            its number of tokens.
        batch: Number of samples.
        count: Number of tokens of the place.
        device: Where the maps are used.
    """
    numbers = [one[:, 0].long() * count + one[:, 1].long() for one, _ in relations]
    total = torch.zeros(batch * count, dtype=torch.float64)
    for tokens, (one, _) in zip(numbers, relations, strict=True):
        total.index_add_(0, tokens, one[:, 3])
    maps = []
    for tokens, (one, upstream_count) in zip(numbers, relations, strict=True):
        upstream = one[:, 0].long() * upstream_count + one[:, 2].long()
        weights = one[:, 3] / total[tokens]
        every = torch.arange(batch * count)
        same = count == upstream_count and len(tokens) == len(every)
        is_identity = (
            same and torch.equal(tokens, upstream) and torch.equal(tokens.sort()[0], every)
        )
        is_identity = is_identity and bool((weights == 1).all())
        shape = (batch, count, upstream_count)
        moved = (tokens.to(device), upstream.to(device), weights.to(device))
        maps.append(TokenMap(*moved, shape, is_identity))
    return maps
