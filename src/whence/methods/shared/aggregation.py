"""Aggregate all attention maps to scores of tokens, in many ways: by heads, layers and rows."""

from collections.abc import Sequence
from itertools import product, starmap
from typing import NamedTuple

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.shared.attention_maps import (
    lower_pooled_token,
    require_one_sequence,
    select_pooled_rows,
)

HEADS = ("mean", "gradient", "each")
LAYERS = ("mean", "product", "rollout", "each")
ROWS = ("read", "to", "mean", "max")


class Aggregation(NamedTuple):
    """One way to aggregate all attention maps to a single row."""

    heads: str  # their "mean", weighted by "gradient", or a head's number
    layers: str  # their "mean", "product" or "rollout", or a layer's number
    rows: str  # the row that is "read", attention "to" it, or each column's "mean" or "max"

    @property
    def is_joint(self) -> bool:
        """Whether all heads and all layers take part."""
        return not (self.heads.isdecimal() or self.layers.isdecimal())


def list_aggregations(
    heads: Sequence[str], layers: Sequence[str], rows: Sequence[str], counts: tuple[int, range]
) -> list[Aggregation]:
    """List all combinations of heads, layers and rows; those over all heads and layers first.

    ``counts`` says how many heads there are, and which layers.
    """
    every_head = _expand_each(heads, range(counts[0]), "heads")
    every_layer = _expand_each(layers, counts[1], "layers")
    every = starmap(Aggregation, product(every_head, every_layer, dict.fromkeys(rows)))
    return sorted(every, key=lambda aggregation: not aggregation.is_joint)


def _expand_each(words: Sequence[str], numbers: range, option: str) -> list[str]:
    """Replace "each" by all numbers."""
    known = [str(number) for number in numbers]
    expanded: dict[str, None] = {}
    for word in words:
        word = str(int(word)) if word.isdecimal() else word
        if word.isdecimal() and word not in known:
            raise WhenceError(
                f"{option}={word} does not exist here: choose from {known[0]} to {known[-1]}."
            )
        expanded.update(dict.fromkeys(known if word == "each" else [word]))
    return list(expanded)


def aggregate_attention(
    evidence: Evidence, aggregations: Sequence[Aggregation], layers: range
) -> Tensor:
    """Compute the scores of aggregations of layers: (aggregations, classes, batch, tokens)."""
    require_one_sequence(evidence)
    tokens = evidence.pooling.shape[-1]
    for layer in layers:
        if evidence.attention[layer].shape[-2:] != (tokens, tokens):
            queries, keys = evidence.attention[layer].shape[-2:]
            raise WhenceError(
                f"Layer {layer} attends from {queries} to {keys} tokens, but the classifier reads "
                f"{tokens}: maps of different sizes cannot be aggregated. candidates='methods' "
                f"works with whatever those methods do."
            )
    scores: dict[Aggregation, Tensor] = {}
    for heads in dict.fromkeys(one.heads for one in aggregations):
        maps = {layer: _aggregate_heads(evidence, heads, layer) for layer in layers}
        same_heads = [one for one in aggregations if one.heads == heads]
        for how in dict.fromkeys(one.layers for one in same_heads):
            whole = _aggregate_layers(maps, how)
            for one in same_heads:
                if one.layers == how:
                    row = _aggregate_rows(evidence, whole, one.rows)
                    scores[one] = lower_pooled_token(row, evidence)
    return torch.stack([scores[one] for one in aggregations])


def _aggregate_heads(evidence: Evidence, heads: str, layer: int) -> Tensor:
    """Aggregate the heads of a layer to one map: (classes or 1, batch, tokens, tokens)."""
    attention = evidence.attention[layer]
    if heads == "gradient":
        return (evidence.gradient[layer] * attention).clamp_(min=0).mean(-3)
    return (attention.mean(1) if heads == "mean" else attention[:, int(heads)])[None]


def _aggregate_layers(maps: dict[int, Tensor], how: str) -> Tensor:
    """Aggregate all layers to one map: (classes or 1, batch, tokens, tokens)."""
    if how.isdecimal():
        return maps[int(how)]
    each = list(maps.values())
    if how == "mean":
        return torch.stack(each).mean(0)
    if how == "rollout":
        identity = torch.eye(each[0].shape[-1], dtype=each[0].dtype, device=each[0].device)
        each = [(identity + one) / (1 + one.sum(-1, keepdim=True)) for one in each]
    whole = each[0]
    for one in each[1:]:
        whole = one @ whole
    return whole


def _aggregate_rows(evidence: Evidence, attention: Tensor, rows: str) -> Tensor:
    """Aggregate a map to one row, (classes, batch, tokens); rows of padding do not count."""
    if rows == "read":
        return select_pooled_rows(attention, evidence)
    if rows == "to":
        return (attention @ evidence.pooling[..., None])[..., 0]
    real = evidence.token_mask[..., None]
    attention = attention * real
    row = attention.amax(-2) if rows == "max" else attention.sum(-2) / real.sum(-2)
    return row.expand_as(evidence.pooling)
