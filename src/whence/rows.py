"""Reading a stack of attention maps: the rows that the classifier reads, carried down."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence


def layers_from(start: int, layers: int, option: str = "start_layer") -> range:
    """Layers from the last one down to a first one.

    Raises:
        WhenceError: There is no such layer.
    """
    if not 0 <= start < layers:
        raise WhenceError(
            f"{option}={start} does not exist: the model has {layers} attention "
            f"layers, 0 to {layers - 1}."
        )
    return range(layers - 1, start - 1, -1)


def layer_of(layers: Sequence[Tensor], layer: int) -> Tensor:
    """One of the layers; negative numbers count from the end.

    Raises:
        WhenceError: There is no such layer.
    """
    count = len(layers)
    if not -count <= layer < count:
        raise WhenceError(
            f"layer={layer} does not exist: the model has {count} attention layers, 0 to "
            f"{count - 1}, or -{count} to -1 counted from the end."
        )
    return layers[layer]


def pooled_rows(maps: Tensor, evidence: Evidence) -> Tensor:
    """The rows of a map, (..., queries, keys), that the classifier reads, as (..., keys)."""
    return (evidence.pooling[..., None, :] @ maps)[..., 0, :]


def carried(
    kept: Tensor, moved: Tensor, added: Tensor, normalize_rows: bool = False
) -> tuple[Tensor, Tensor]:
    """A row vector times (I + added), in two parts that add up to it.

    The first part is what identities alone carry on: it says which tokens are read, not where in
    the input their content came from. The other is small beside it, and precise when kept apart.

    Args:
        kept: (..., tokens), the part that only identities carried so far.
        moved: (..., tokens), the rest.
        added: (..., tokens, tokens). Where queries are not the keys, as in pooling by attention,
            there is no skip connection, and no identity is added.
        normalize_rows: Whether to divide the rows of (I + added) by their sum first.
    """
    queries, keys = added.shape[-2:]
    if kept.shape[-1] != queries:
        raise WhenceError(
            f"The attention maps do not follow on each other: one has {queries} queries, the next "
            f"reads {kept.shape[-1]} tokens. Models with windows, merged tokens or cross-attention "
            f"cannot be explained by this method."
        )
    identity = 1 if queries == keys else 0
    if normalize_rows:
        sums = identity + added.sum(-1)
        kept, moved = kept / sums, moved / sums
    step = ((kept + moved)[..., None, :] @ added)[..., 0, :]
    return (kept, moved + step) if identity else (torch.zeros_like(step), step)


def lowest_at_pooled(scores: Tensor, evidence: Evidence) -> Tensor:
    """Give the token that is read, if it is a single one, the lowest score among real tokens."""
    if scores.shape != evidence.pooling.shape:
        return scores
    real = scores
    if evidence.padding is not None and evidence.padding.shape == scores.shape[1:]:
        real = scores.masked_fill(evidence.padding, math.inf)
    pooled = evidence.pooling == 1
    lowest = real.masked_fill(pooled, math.inf).amin(-1, keepdim=True)
    return torch.where(pooled & lowest.isfinite(), lowest, scores)
