"""Attention maps as scores: rollout over layers, rows of pooled tokens, checks of layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.tracing.graph import find_sequences, is_attention_pooling


def check_layer(layer: int, layers: int, option: str = "layer", negative: bool = True) -> int:
    """Check that a layer exists, and return its number counted from the input.

    Args:
        layer: Its number.
        layers: How many layers there are.
        option: Name of the method's option, for the error.
        negative: Whether negative numbers count from the last layer.

    Raises:
        WhenceError: There is no such layer.
    """
    if not (-layers if negative else 0) <= layer < layers:
        from_end = f", or -{layers} to -1 from the end" if negative else ""
        raise WhenceError(
            f"{option}={layer} does not exist: the model has {layers} attention layers, 0 to "
            f"{layers - 1}{from_end}."
        )
    return layer % layers


def check_start_layer(start: int, evidence: Evidence) -> None:
    """Check that the first layer of a method exists.

    Raises:
        WhenceError: There is no such layer.
    """
    check_layer(start, len(evidence.trace.sites), "start_layer", negative=False)


def select_layers(layer: int | None, layers: int) -> list[int]:
    """Select all layers, or one; negative numbers count from the last.

    Raises:
        WhenceError: There is no such layer.
    """
    return list(range(layers)) if layer is None else [check_layer(layer, layers)]


def check_readable_layer(layer: int, evidence: Evidence) -> int:
    """Check that a layer's map leads from the pooled tokens to the input's; return its number.

    Raises:
        WhenceError: There is no such layer, or its map connects other tokens.
    """
    sites, sequences = evidence.trace.sites, find_sequences(evidence.trace)
    number = check_layer(layer, len(sites))
    site, own = sites[number], sequences[number]
    reads_input = own.keys == sequences[0].keys
    reads_input = reads_input or (own.merged and site.key_count == evidence.tokens)
    if own.queries != sequences[-1].queries or not reads_input:
        raise WhenceError(
            f"layer={layer}, the attention in {site.where}, is not from the tokens that the "
            f"classifier reads to those of the input. Choose another layer."
        )
    return number


def require_one_sequence(evidence: Evidence) -> None:
    """Check that all attention is within one sequence, but for attention pooling at the end.

    Raises:
        WhenceError: There are several sequences, as in an encoder-decoder.
    """
    sequences = find_sequences(evidence.trace)
    pairs = list(zip(evidence.trace.sites, sequences, strict=True))
    for site, own in pairs[:-1] if is_attention_pooling(evidence.trace, sequences) else pairs:
        if {own.queries, own.keys} != {sequences[0].keys}:
            raise WhenceError(
                f"The attention in {site.where} is not within the one sequence of tokens that the "
                f"first attention reads. Models with merged tokens, several inputs or "
                f"cross-attention cannot be explained by this method; 'gae' knows cross-attention."
            )


def select_pooled_rows(maps: Tensor, evidence: Evidence) -> Tensor:
    """Average the rows of the pooled tokens by their weights: (classes, batch, keys).

    Args:
        maps: (..., batch, queries, keys).
        evidence: Has the weights of the pooled tokens.
    """
    return (evidence.pooling[..., None, :] @ maps)[..., 0, :]


def normalize_rows(matrix: Tensor) -> Tensor:
    """Divide the rows of a matrix without negative entries by their sum; rows of zeros stay."""
    sums = matrix.sum(-1, keepdim=True)
    return matrix / torch.where(sums == 0, 1, sums)


def rollout_step(
    kept: Tensor, moved: Tensor, added: Tensor, normalize: bool = False
) -> tuple[Tensor, Tensor]:
    """Multiply a row vector, kept + moved, by (I + added); return it in two terms.

    The first term is the product with identities alone: it shows which tokens are pooled, not
    where in the input their content comes from. The second is small beside it, and precise when
    kept apart.

    Args:
        kept: (..., tokens), the product with identities alone so far.
        moved: (..., tokens), the rest.
        added: (..., tokens, tokens). Where queries are not the keys, as in attention pooling, there
            is no skip connection, and no identity is added.
        normalize: Whether to divide the rows of (I + added) by their sum first.
    """
    queries, keys = added.shape[-2:]
    if kept.shape[-1] != queries:
        raise WhenceError(
            f"The attention maps do not follow on each other: one has {queries} queries, the next "
            f"reads {kept.shape[-1]} tokens. Models with windows, merged tokens or cross-attention "
            f"cannot be explained by this method."
        )
    identity = 1 if queries == keys else 0
    if normalize:
        sums = identity + added.sum(-1)
        sums = sums.masked_fill(sums == 0, 1)  # a row of zeros stays one
        kept, moved = kept / sums, moved / sums
    step = ((kept + moved)[..., None, :] @ added)[..., 0, :]
    return (kept, moved + step) if identity else (torch.zeros_like(step), step)


def multiply_layers(matrices: Sequence[Tensor], rows: Tensor, add_identity: bool) -> Tensor:
    """Multiply row vectors by the matrices of all layers, from the last layer to the first.

    Args:
        matrices: (batch, tokens, tokens) for each layer, the one nearest the input first, with rows
            that sum to 1.
        rows: (classes, batch, tokens), weights of the pooled tokens.
        add_identity: Whether matrices lack the skip connection, so that it is added as the
            identity, and rows are divided by their sum again. The product of identities alone is
            then left out.
    """
    if not add_identity:
        for matrix in reversed(matrices):
            rows = (rows[..., None, :] @ matrix)[..., 0, :]
        return rows
    kept, moved = rows, torch.zeros_like(rows)
    for matrix in reversed(matrices):
        kept, moved = rollout_step(kept, moved, matrix, normalize=True)
    return moved


def input_token_mask(evidence: Evidence, tokens: int) -> Tensor:
    """Mark the tokens that represent a part of the input: (classes, batch, tokens).

    Prefix tokens, padding and special tokens are left out. In a text, pooled tokens are left out
    too, unless there are no others.
    """
    mask = torch.arange(tokens, device=evidence.logits.device) >= (evidence.layout.prefix or 0)
    mask = mask.expand(evidence.batch, tokens)
    for excluded in (evidence.padding, evidence.special):
        if excluded is not None and excluded.shape == mask.shape:
            mask = mask & ~excluded
    mask = mask.expand(len(evidence.pooling), *mask.shape)
    if evidence.layout.grid is not None or evidence.pooling.shape[-1] != tokens:
        return mask
    unpooled = mask & (evidence.pooling == 0)
    return torch.where(unpooled.any(-1, keepdim=True), unpooled, mask)


def lower_pooled_token(scores: Tensor, evidence: Evidence) -> Tensor:
    """Give a single pooled token the lowest score among the tokens without padding.

    Scores stay as they are where the pooled token is not one of the input, as in a decoder.
    """
    if scores.shape != evidence.pooling.shape:
        return scores
    sequences = find_sequences(evidence.trace)
    if sequences[-1].queries != sequences[0].keys:
        return scores
    unpadded = scores
    if evidence.padding is not None and evidence.padding.shape == scores.shape[1:]:
        unpadded = scores.masked_fill(evidence.padding, math.inf)
    pooled = evidence.pooling == 1
    lowest = unpadded.masked_fill(pooled, math.inf).amin(-1, keepdim=True)
    return torch.where(pooled & lowest.isfinite(), lowest, scores)
