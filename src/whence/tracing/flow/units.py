"""Units: the tokens of the input that a flow leads to, and which of them other tokens share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whence.layout.fields import TokenFields


def gather_units(finest: TokenFields, places: Sequence[TokenFields]) -> TokenFields:
    """The fields of the finest tokens, and after them those of other places that share nothing.

    So each part of the input counts that any tokens stand for, as where two stacks read a half
    each.

    Args:
        finest: The fields of the place with most tokens.
        places: The fields of all places.
    """
    units = finest
    for own in sorted(places, key=lambda one: -int((one.counts > 0).sum())):
        overlaps = [_measure_overlap(own, units, n).any(1) for n in range(len(own.counts))]
        is_new = (own.counts > 0) & ~torch.stack(overlaps)
        chosen = is_new.any(0)
        if bool(chosen.any()):
            kept = is_new[:, chosen]
            first, last = (of[:, chosen] * kept[..., None] for of in (own.starts, own.stops))
            added = TokenFields(own.shape, first, last, own.counts[:, chosen] * kept)
            units = TokenFields.concatenate([units, added])
    return units


def _measure_overlap(own: TokenFields, others: TokenFields, sample: int) -> Tensor:
    """How many elements the fields of two places share in a sample: (tokens, others' tokens)."""
    shared = (own.counts[sample, :, None] > 0) * (others.counts[sample, None] > 0).double()
    for dim in range(own.starts.shape[-1]):
        pairs = [(one.starts[sample, :, dim], one.stops[sample, :, dim]) for one in (own, others)]
        (start, stop), (first, last) = pairs
        length = torch.minimum(stop[:, None], last) - torch.maximum(start[:, None], first)
        shared = shared * length.clamp_min(0)
    return shared


def relate_fields(own: TokenFields, finest: TokenFields, same: bool) -> Tensor:
    """Which tokens of the input other tokens stand for, by how much of it they share."""
    if same:
        sample, token = (own.counts > 0).nonzero().T
        return torch.stack([sample, token, token, torch.ones_like(token)], 1).double()
    relations = []
    for sample in range(len(own.counts)):
        shared = _measure_overlap(own, finest, sample)
        alike = (own.starts[sample, :, None] == finest.starts[sample]).all(-1)
        alike &= (own.stops[sample, :, None] == finest.stops[sample]).all(-1)
        is_one = alike.any(1, keepdim=True)  # it stands for the very same part
        shared = torch.where(is_one & ~alike, 0, shared)
        total = shared.sum(1, keepdim=True)
        shared = shared / total.masked_fill(total == 0, 1)
        token, upstream = shared.nonzero().T
        numbers = torch.stack([token * 0 + sample, token, upstream], 1).double()
        relations.append(torch.cat([numbers, shared[token, upstream][:, None]], 1))
    return torch.cat(relations)
