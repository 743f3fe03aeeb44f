"""Attention maps as scores: rollout over layers, rows of pooled tokens, checks of layers."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.shared.flows import are_read_alike, follow_layer, roll_out_flow
from whence.tracing.graph import is_attention_pooling, is_sequential
from whence.tracing.mixing import find_mixing


def check_layer(layer: int, layers: int, option: str = "layer", negative: bool = True) -> int:
    """Check that a layer exists, and return its number counted from the input.

    Negative numbers count from the last of all layers, where they are allowed.
    """
    if not (-layers if negative else 0) <= layer < layers:
        from_end = f", or -{layers} to -1 from the end" if negative else ""
        raise WhenceError(
            f"{option}={layer} does not exist: the model has {layers} attention layers, 0 to "
            f"{layers - 1}{from_end}."
        )
    return layer % layers


def select_layers(layer: int | None, evidence: Evidence) -> list[int]:
    """Select one layer, or all, of a model with one sequence; negative numbers count back."""
    require_one_sequence(evidence)
    layers = len(evidence.blocks)
    return list(range(layers)) if layer is None else [check_layer(layer, layers)]


def check_readable_layer(layer: int, evidence: Evidence) -> int:
    """Check that a layer's map leads from the pooled tokens to the input's; return its number."""
    layers = evidence.layers
    number = check_layer(layer, len(layers))
    own = layers[number]
    if evidence.flow is not None:
        return number
    if own.queries != layers[-1].queries or own.keys != layers[0].keys:
        raise WhenceError(
            f"layer={layer}, the attention in {own.where}, is not from the tokens that the "
            f"classifier reads to those of the input. Choose another layer."
        )
    return number


def require_one_sequence(evidence: Evidence, start_layer: int = 0) -> None:
    """Check that all attention but a last pooling is in one sequence, and that a layer exists."""
    layers = evidence.layers
    if evidence.trace.flow_problem:
        raise WhenceError(evidence.trace.flow_problem)
    refuse_flow(evidence)
    for own in layers[:-1] if is_attention_pooling(layers) else layers:
        if own.merged or {own.queries, own.keys} != {layers[0].keys}:
            raise WhenceError(_SEVERAL_SEQUENCES.format(own.where))
    check_layer(start_layer, len(layers), "start_layer", negative=False)
    require_unmixed_tokens(evidence)


_SEVERAL_SEQUENCES = (
    "The attention in {} is not within one sequence of tokens that passes all layers in turn, as "
    "this method needs it. 'whence', 'tiba', 'gae', 'rollout' and 'attcat' follow tokens through "
    "windows, merging and other sequences. If a cache holds earlier tokens, give the whole text "
    "without it."
)


def refuse_flow(evidence: Evidence) -> None:
    """Refuse tokens that do not pass all layers in turn in one sequence."""
    if evidence.flow is not None:
        layers = evidence.layers
        inner = (one for one in layers if one.merged or one.is_cross or one.sites[0].problem)
        raise WhenceError(_SEVERAL_SEQUENCES.format(next(inner, layers[-1]).where))


def require_known_layers(evidence: Evidence, start_layer: int = 0) -> None:
    """Check that it is known how tokens pass the layers, and that a first layer exists."""
    if evidence.flow is None:
        require_one_sequence(evidence, start_layer)
        require_layers_in_turn(evidence)
        return
    check_layer(start_layer, len(evidence.layers), "start_layer", negative=False)
    require_unmixed_tokens(evidence)


def require_unmixed_tokens(evidence: Evidence) -> None:
    """Check that tokens of a text meet in attention alone."""
    if evidence.flow is not None:
        where = evidence.flow.mixing
    else:
        layer = find_mixing(evidence.trace)
        where = None if layer is None else layer.where
    if where is not None:
        raise WhenceError(
            f"Tokens meet outside of attention next to the attention in {where}, in layers "
            f"such as those of Mamba, and this method reads attention alone. Methods at the input, "
            f"such as 'attnlrp' or 'input_x_gradient', work."
        )


def require_layers_in_turn(evidence: Evidence) -> None:
    """Check that nothing leads around a layer of attention but its skip connection."""
    if not is_sequential(evidence.trace):
        raise WhenceError(
            "The target, or a layer, reads tokens from before the layer upstream of it, and this "
            "method takes all layers of attention in turn. Methods at the input, such as "
            "'input_x_gradient', work."
        )


def score_layer(fused: Tensor, layer: int, evidence: Evidence) -> Tensor:
    """Score tokens by the pooled tokens' rows of one layer's map, (..., queries, keys).

    In a flow of tokens, rows come to the layer, and go on from its keys, along residual streams.
    """
    if evidence.flow is None:
        return score_pooled_rows(fused, evidence)
    return lower_pooled_token(follow_layer(evidence, evidence.flow, layer, fused), evidence)


def select_pooled_rows(maps: Tensor, evidence: Evidence) -> Tensor:
    """Average the pooled tokens' rows of maps, (..., queries, keys): (classes, batch, keys)."""
    return (evidence.last_pooling[..., None, :] @ maps)[..., 0, :]


def score_pooled_rows(maps: Tensor, evidence: Evidence) -> Tensor:
    """Score tokens by the pooled tokens' rows; a pooled token of no input gets the lowest score."""
    return lower_pooled_token(select_pooled_rows(maps, evidence), evidence)


def mark_unpadded_pairs(maps: Tensor, evidence: Evidence, pools: bool = False) -> Tensor:
    """Mark the queries and keys of maps, (batch, queries, keys), that are no padding.

    The queries of attention that only pools tokens are no tokens of the input.
    """
    mask, real = torch.ones_like(maps, dtype=torch.bool), evidence.token_mask
    if maps.shape[-1] == evidence.tokens:
        mask &= real[:, None, :]
    if maps.shape[-2] == evidence.tokens and not pools:
        mask &= real[:, :, None]
    return mask


def normalize_rows(matrix: Tensor) -> Tensor:
    """Divide the rows of a matrix without negative entries by their sum; rows of zeros stay."""
    sums = matrix.sum(-1, keepdim=True)
    return matrix / torch.where(sums == 0, 1, sums)


def roll_out(
    rows: Tensor, maps: Iterable[Tensor], normalize: bool = False, pools: bool = False
) -> tuple[Tensor, Tensor]:
    """Multiply row vectors, (..., tokens), by (I + A) of all maps A, the last layer's first.

    Where the last attention only pools tokens, it has no skip connection, and so no I.

    The product is returned in two terms. The first is the product with identities alone: it shows
    which tokens are pooled, not where in the input their content comes from. The second is small
    beside it, and precise when kept apart. Rows of (I + A) may be divided by their sum first.
    """
    kept, moved = rows, torch.zeros_like(rows)
    for number, added in enumerate(maps):
        has_skip = number > 0 or not pools
        kept, moved = _rollout_step(kept, moved, added, normalize, has_skip)
    return kept, moved


def roll_out_layers(
    evidence: Evidence, maps: Iterable[Tensor], normalize: bool = False
) -> tuple[Tensor, Tensor]:
    """Multiply what the target reads by (I + A) of all maps A: to the tokens of the input.

    The product is in two terms, as `roll_out` returns it.
    """
    if evidence.flow is not None:
        return roll_out_flow(evidence, evidence.flow, maps, normalize)
    pools = is_attention_pooling(evidence.layers)
    return roll_out(evidence.pooling, maps, normalize, pools)


def _rollout_step(
    kept: Tensor, moved: Tensor, added: Tensor, normalize: bool, has_skip: bool
) -> tuple[Tensor, Tensor]:
    """Multiply a row vector, kept + moved, by (I + added); return it in two terms."""
    queries, keys = added.shape[-2:]
    if kept.shape[-1] != queries or (has_skip and queries != keys):
        raise WhenceError(
            f"The attention maps do not follow on each other: one has {queries} queries, the next "
            f"reads {kept.shape[-1]} tokens. Models with windows, merged tokens or cross-attention "
            f"cannot be explained by this method."
        )
    if normalize:
        sums = int(has_skip) + added.sum(-1)
        sums = sums.masked_fill(sums == 0, 1)  # a row of zeros stays one
        kept, moved = kept / sums, moved / sums
    step = ((kept + moved)[..., None, :] @ added)[..., 0, :]
    return (kept, moved + step) if has_skip else (torch.zeros_like(step), step)


def multiply_layers(
    matrices: Iterable[Tensor], evidence: Evidence, add_identity: bool = False
) -> Tensor:
    """Normalize layers' matrices, the last one's first, and multiply the pooled rows by them.

    Where the matrices, (batch, tokens, tokens), lack the skip connection, it is added as the
    identity, and rows are normalized again.
    """
    # In float32 at least: many rows that nearly cancel would be lost in 16 bits.
    dtype = torch.promote_types(evidence.pooling.dtype, torch.float32)
    normalized = (normalize_rows(matrix.to(dtype)) for matrix in matrices)
    rows = evidence.pooling.to(dtype)
    if add_identity:
        return add_own_share(*roll_out(rows, normalized, normalize=True), evidence)
    for matrix in normalized:
        rows = (rows[..., None, :] @ matrix)[..., 0, :]
    return rows


def lower_pooled_token(scores: Tensor, evidence: Evidence) -> Tensor:
    """Give a single pooled token that stands for no part of the input the lowest score of others.

    Padding does not count. Scores stay as they are where the pooled token is not one of the scored
    sequence, as in a decoder.
    """
    if scores.shape != evidence.pooling.shape:
        return scores
    if evidence.flow is None and evidence.layers[-1].queries != evidence.layers[0].keys:
        return scores
    others = scores.masked_fill(~evidence.token_mask, math.inf)
    pooled = (evidence.pooling == 1) & ~evidence.input_tokens
    lowest = others.masked_fill(pooled, math.inf).amin(-1, keepdim=True)
    return torch.where(pooled & lowest.isfinite(), lowest, scores)


def add_own_share(kept: Tensor, moved: Tensor, evidence: Evidence) -> Tensor:
    """Add the two terms of a product over layers, as `roll_out` gives them.

    The first term is what pooled tokens keep of themselves through skip connections. It belongs to
    the score of tokens that are pooled and stand for a part of the input. Where all these are
    pooled alike, it tells them apart no more, and is left out: the second term is small beside it.
    """
    if kept.shape != evidence.pooling.shape or kept.shape[-1] != evidence.tokens:
        return moved
    if evidence.flow is not None:
        alike = are_read_alike(evidence, evidence.flow)
        return moved + torch.where(~alike & evidence.input_tokens, kept, 0)
    weights, mask = evidence.pooling, evidence.input_tokens
    highest = weights.masked_fill(~mask, -math.inf).amax(-1, keepdim=True)
    lowest = weights.masked_fill(~mask, math.inf).amin(-1, keepdim=True)
    uneven = highest - lowest > 1e-6 * highest
    return moved + torch.where(uneven & mask, kept, 0)


def finish_rollout(kept: Tensor, moved: Tensor, evidence: Evidence) -> Tensor:
    """Score tokens by the two terms of a product over layers, as `roll_out` gives them."""
    return lower_pooled_token(add_own_share(kept, moved, evidence), evidence)
