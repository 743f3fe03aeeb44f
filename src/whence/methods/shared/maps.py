"""Reading a stack of attention maps: the rows that the classifier reads, carried down."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.tracing.graph.sequences import find_sequences, is_attention_pooling


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


def check_layer(start: int, evidence: Evidence) -> None:
    """See that there is a layer to start from.

    Raises:
        WhenceError: There is no such layer.
    """
    layers_from(start, len(evidence.trace.sites))


def read_layer(layer: int, evidence: Evidence) -> int:
    """The number of a layer, which counts from the end where it is negative.

    Raises:
        WhenceError: There is no such layer, or its map is not one from the tokens that the
            classifier reads to those of the input.
    """
    layers = len(evidence.trace.sites)
    if not -layers <= layer < layers:
        raise WhenceError(
            f"layer={layer} does not exist: the model has {layers} attention layers, 0 to "
            f"{layers - 1}, or -{layers} to -1 from the end."
        )
    streams = find_sequences(evidence.trace)
    of, site = streams[layer], evidence.trace.sites[layer]
    to_input = of.keys == streams[0].keys or (of.merged and site.key_count == evidence.tokens)
    if of.queries != streams[-1].queries or not to_input:
        raise WhenceError(
            f"layer={layer}, the attention in {site.where}, is not from the tokens that the "
            f"classifier reads to those of the input. Choose another layer."
        )
    return layer % layers


def pooled_rows(maps: Tensor, evidence: Evidence) -> Tensor:
    """The rows of the tokens that the classifier reads: (classes, batch, keys).

    Args:
        maps: (..., batch, queries, keys).
        evidence: Says how the tokens are pooled.
    """
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
        sums = sums.masked_fill(sums == 0, 1)  # a row of zeros stays one
        kept, moved = kept / sums, moved / sums
    step = ((kept + moved)[..., None, :] @ added)[..., 0, :]
    return (kept, moved + step) if identity else (torch.zeros_like(step), step)


def content(evidence: Evidence, tokens: int) -> Tensor:
    """(classes, batch, tokens), true for tokens that stand for a part of the input.

    Never prefix tokens, padding, and tokens known to be of no word. Of a text, tokens that the
    classifier reads are left out too, unless it reads all that remain.
    """
    allowed = torch.arange(tokens, device=evidence.logits.device) >= (evidence.layout.prefix or 0)
    allowed = allowed.expand(evidence.batch, tokens)
    for never in (evidence.padding, evidence.special):
        if never is not None and never.shape == allowed.shape:
            allowed = allowed & ~never
    allowed = allowed.expand(len(evidence.pooling), *allowed.shape)
    if evidence.layout.grid is not None or evidence.pooling.shape[-1] != tokens:
        return allowed
    unread = allowed & (evidence.pooling == 0)
    return torch.where(unread.any(-1, keepdim=True), unread, allowed)


def lowest_at_pooled(scores: Tensor, evidence: Evidence) -> Tensor:
    """Give the token that is read, if it is a single one, the lowest score among real tokens.

    Where the classifier reads other tokens than those of the input, a decoder's, nothing changes.
    """
    if scores.shape != evidence.pooling.shape or _reads_others(evidence):
        return scores
    real = scores
    if evidence.padding is not None and evidence.padding.shape == scores.shape[1:]:
        real = scores.masked_fill(evidence.padding, math.inf)
    pooled = evidence.pooling == 1
    lowest = real.masked_fill(pooled, math.inf).amin(-1, keepdim=True)
    return torch.where(pooled & lowest.isfinite(), lowest, scores)


def _reads_others(evidence: Evidence) -> bool:
    streams = find_sequences(evidence.trace)
    return streams[-1].queries != streams[0].keys


def one_sequence(evidence: Evidence) -> None:
    """See that all attention is in one sequence, but for pooling by attention at the end.

    Raises:
        WhenceError: Some is not, as in an encoder-decoder.
    """
    streams = find_sequences(evidence.trace)
    maps = list(zip(evidence.trace.sites, streams, strict=True))
    for site, of in maps[:-1] if is_attention_pooling(evidence.trace, streams) else maps:
        if {of.queries, of.keys} != {streams[0].keys}:
            raise WhenceError(
                f"The attention in {site.where} is not within the one sequence of tokens that the "
                f"first attention reads. Models with merged tokens, several inputs or "
                f"cross-attention cannot be explained by this method; 'gae' knows cross-attention."
            )
