"""Attention rollout (Abnar, Zuidema; ACL 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence, MapReadings
from whence.methods.registry import Method, register
from whence.methods.shared.maps import carried, check_layer, lowest_at_pooled, one_sequence


@register("rollout", aliases=("attention_rollout",))
@dataclass(frozen=True)
class Rollout(Method):
    r"""Attention maps with their skip connections, multiplied over layers.

    With :math:`A^{(b)}` the attention map of layer b, its heads fused into one,

    .. math::
        \bar A^{(b)} = \mathrm{rows\ of}\ (I + A^{(b)})\ \mathrm{divided\ by\ their\ sum}, \qquad
        C = \bar A^{(B)} \cdots \bar A^{(1)},

    and the explanation is the row of C that belongs to the token which the classifier reads,
    averaged if it reads several. Only that row is computed. It is the whole row: what the
    identities alone hand to the tokens that are read is part of the method, and with average
    pooling it is one constant for every token (so rows still sum to 1). A single token that is read
    in a text gets the lowest score of the others. (The authors of TIBA set it to 0.)

    Attributes:
        start_layer: The first layer that takes part; earlier ones are left out.
        heads: How heads are fused: their mean, as in the paper, largest or smallest value.
        discard_ratio: This fraction of each fused map's entries, the lowest of them, becomes 0
            before the identity is added; padding does not count. Where the classifier reads a
            single token, the attention of that token to itself is kept.
        normalize_rows: Divide the rows of (I + A) by their sum.
    """

    needs: ClassVar[tuple[str, ...]] = ("attention",)
    citation: ClassVar[str] = "Abnar, Zuidema: Quantifying Attention Flow in Transformers, ACL 2020"
    cost: ClassVar[str] = "1"
    class_specific: ClassVar[bool] = False
    streamed: ClassVar[bool] = True

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

    @property
    def first_site(self) -> int:  # noqa: D102
        return self.start_layer

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        one_sequence(evidence)
        kept, moved = evidence.pooling, torch.zeros_like(evidence.pooling)
        check_layer(self.start_layer, evidence)
        for fused in evidence.fuse_heads(_attention, self.heads, self.start_layer):
            if self.discard_ratio:
                fused = _without_lowest(fused, self.discard_ratio, evidence)
            kept, moved = carried(kept, moved, fused, self.normalize_rows)
        return lowest_at_pooled(kept + moved, evidence)


def _attention(layer: MapReadings) -> Tensor:
    return layer.attention


def _without_lowest(maps: Tensor, ratio: float, evidence: Evidence) -> Tensor:
    """Maps, (batch, queries, keys), whose lowest entries are 0: a fraction of the real ones."""
    counted = torch.ones_like(maps, dtype=torch.bool)
    own = torch.zeros_like(counted)
    real = evidence.token_mask
    if maps.shape[-1] == evidence.tokens:
        counted &= real[:, None, :]
    if maps.shape[-2] == evidence.tokens:
        counted &= real[:, :, None]
    if maps.shape[-2:] == 2 * evidence.pooling.shape[-1:]:
        own |= torch.diag_embed((evidence.pooling == 1).any(0))
    flat = maps.masked_fill(~counted, torch.inf).flatten(1)
    order = flat.argsort(dim=1, stable=True)
    discarded = torch.zeros_like(counted).flatten(1)
    for sample, total in enumerate(counted.sum((1, 2)).tolist()):
        discarded[sample, order[sample, : int(total * ratio)]] = True
    return maps.masked_fill(discarded.view_as(maps) & ~own, 0)
