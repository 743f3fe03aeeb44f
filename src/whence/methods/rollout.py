"""Attention rollout: attention maps multiplied over layers (Abnar, Zuidema; ACL 2020)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    lower_pooled_token,
    mark_unpadded_pairs,
    require_known_layers,
    roll_out_layers,
)
from whence.tracing.graph import is_attention_pooling


@register("rollout", aliases=("attention_rollout",))
@dataclass(frozen=True)
class Rollout(Method):
    r"""Attention maps with their skip connections, multiplied over layers.

    With :math:`A^{(b)}` the attention map of layer b, its heads fused,

    .. math::
        \bar A^{(b)} = \mathrm{rows\ of}\ (I + A^{(b)})\ \mathrm{divided\ by\ their\ sum}, \qquad
        C = \bar A^{(B)} \cdots \bar A^{(1)},

    and the explanation is the row of C of the pooled token, averaged if there are several. Only
    that row is computed. It is the whole row: the product of identities alone is part of the
    method, and with average pooling it is one constant for every token (so rows still sum to 1). So
    a pooled token that is a part of the input has the skip connections' share in its score. In a
    text, a single pooled token that is no part of the input, such as ``[CLS]``, gets the lowest
    score of the others. (The authors of TIBA set it to 0.)

    Attributes:
        start_layer: The first layer that counts; earlier ones are left out.
        heads: How heads are fused: their mean, as in the paper, largest or smallest value.
        discard_ratio: This fraction of each fused map's entries, the lowest of them, becomes 0
            before the identity is added; padding does not count. The attention of a single pooled
            token to itself is kept.
        normalize_rows: Divide the rows of (I + A) by their sum.
    """

    needs = ("attention",)
    citation = "Abnar, Zuidema: Quantifying Attention Flow in Transformers, ACL 2020"
    cost = "1"
    class_specific = False
    streamed = True

    start_layer: int = 0
    heads: Literal["mean", "max", "min"] = "mean"
    discard_ratio: float = 0.0
    normalize_rows: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.discard_ratio < 1:
            raise WhenceError(
                f"discard_ratio={self.discard_ratio} is no fraction to discard: give a number from "
                f"0 to below 1."
            )

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        require_known_layers(evidence, self.start_layer)
        maps = evidence.fuse_heads(lambda at: at.attention, self.heads, self.start_layer)
        pools = is_attention_pooling(evidence.layers)
        if self.discard_ratio:
            maps = (
                _discard_lowest(one, self.discard_ratio, evidence, pools and number == 0)
                for number, one in enumerate(maps)
            )
        kept, moved = roll_out_layers(evidence, maps, self.normalize_rows)
        return lower_pooled_token(kept + moved, evidence)


def _discard_lowest(maps: Tensor, ratio: float, evidence: Evidence, pools: bool) -> Tensor:
    """Set the lowest entries of maps, (batch, queries, keys), to 0; padding does not count."""
    mask = mark_unpadded_pairs(maps, evidence, pools)
    protected = torch.zeros_like(mask)
    if not pools and maps.shape[-2:] == 2 * evidence.pooling.shape[-1:]:
        protected |= torch.diag_embed((evidence.pooling == 1).any(0))
    order = maps.masked_fill(~mask, torch.inf).flatten(1).argsort(dim=1, stable=True)
    discarded = torch.zeros_like(mask).flatten(1)
    for sample, total in enumerate(mask.sum((1, 2)).tolist()):
        discarded[sample, order[sample, : int(total * ratio)]] = True
    return maps.masked_fill(discarded.view_as(maps) & ~protected, 0)
