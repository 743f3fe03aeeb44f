"""Fields: which part of the input each token stands for, as a box in the input's dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TokenFields(NamedTuple):
    """The parts of one input that the tokens of a sequence stand for.

    Attributes:
        shape: The input's dimensions after the batch.
        starts: (batch, tokens, dimensions), the first index of each token's field.
        stops: As `starts`, one past the last index.
        counts: (batch, tokens), how many elements the field has; 0 for a token that depends on
            none.
        by_value: Whether values may decide what a token depends on, as a mask of padding does.
    """

    shape: tuple[int, ...]
    starts: Tensor
    stops: Tensor
    counts: Tensor
    by_value: bool = False

    @property
    def are_boxes(self) -> bool:
        """Whether each field is all that lies between its first and its last indices."""
        return bool(((self.stops - self.starts).prod(-1) == self.counts).all())

    def cpu(self) -> TokenFields:
        """The same on the CPU."""
        return TokenFields(self.shape, self.starts.cpu(), self.stops.cpu(), self.counts.cpu())

    def expand(self, shape: Sequence[int]) -> TokenFields:
        """The same in an input of this shape, where fields have all of a dimension of length 1."""
        starts, stops, counts = self.starts, self.stops.clone(), self.counts
        for dim, (length, known) in enumerate(zip(shape, self.shape, strict=True)):
            if known != length:
                stops[..., dim] *= length
                counts = counts * length
        return TokenFields(tuple(shape), starts, stops, counts)

    @classmethod
    def from_owners(cls, owners: Tensor, tokens: int) -> TokenFields:
        """Fields that do not overlap, given the token of each element, (batch, ...), or -1."""
        batch, *shape = owners.shape
        flat = owners.reshape(batch, -1)
        # Elements of no token go to one more token, which is left out in the end.
        rows = torch.where(flat < 0, tokens, flat)
        zeros = rows.new_zeros(batch, tokens + 1)
        counts = zeros.scatter_add(1, rows, torch.ones_like(rows))
        starts, stops = [], []
        for dim, length in enumerate(shape):
            at = torch.arange(length, device=owners.device)
            at = at.reshape([-1 if d == dim else 1 for d in range(len(shape))])
            at = at.expand(shape).reshape(1, -1).expand_as(rows)
            first = (zeros + length).scatter_reduce(1, rows, at, "amin")
            starts.append(torch.where(counts > 0, first, 0))
            stops.append((zeros - 1).scatter_reduce(1, rows, at, "amax") + 1)
        first, last = (torch.stack(of, -1)[:, :tokens] for of in (starts, stops))
        return cls(tuple(shape), first, last, counts[:, :tokens])

    @classmethod
    def from_masks(cls, masks: Tensor) -> TokenFields:
        """Fields of any kind, given a mask of elements for each token, (tokens, batch, ...)."""
        tokens, batch, *shape = masks.shape
        starts, stops = [], []
        for dim, length in enumerate(shape):
            others = [d + 2 for d in range(len(shape)) if d != dim]
            line = masks.amax(others) if others else masks
            at = torch.arange(1, length + 1, device=masks.device)
            stop = (line * at).amax(-1).T
            start = length - (line * at.flip(0)).amax(-1).T
            starts.append(start.minimum(stop))  # 0 if there is none
            stops.append(stop)
        counts = masks.reshape(tokens, batch, -1).sum(-1)
        return cls(tuple(shape), torch.stack(starts, -1), torch.stack(stops, -1), counts.T)

    @classmethod
    def add(cls, groups: list[TokenFields]) -> TokenFields:
        """The fields of all tokens, given those of groups of them, which are empty for others."""
        return cls(
            groups[0].shape,
            torch.stack([group.starts for group in groups]).sum(0),
            torch.stack([group.stops for group in groups]).sum(0),
            torch.stack([group.counts for group in groups]).sum(0),
        )

    @classmethod
    def concatenate(cls, chunks: list[TokenFields]) -> TokenFields:
        """The fields of all tokens, given those of some tokens each."""
        return cls(
            chunks[0].shape,
            torch.cat([chunk.starts for chunk in chunks], 1),
            torch.cat([chunk.stops for chunk in chunks], 1),
            torch.cat([chunk.counts for chunk in chunks], 1),
        )
