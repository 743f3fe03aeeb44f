"""Raw attention: one attention map as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.maps import lowest_at_pooled, pooled_rows, read_layer


@register("raw_attention")
@dataclass(frozen=True)
class RawAttention(Method):
    r"""The attention of one layer, averaged over its heads, from the tokens that are read.

    .. math::
        s = p^\top \, \mathbb{E}_h A^{(b)}

    with :math:`A^{(b)}` the attention map of layer b, and p the weights of the tokens which the
    classifier reads. A single such token in a text gets the lowest score of the others: that it is
    read says nothing about the input. (The authors of TIBA set it to 0.)

    Attributes:
        layer: Which layer; below zero, counted from the end.
    """

    needs: ClassVar[tuple[str, ...]] = ("attention",)
    citation: ClassVar[str] = (
        "Vaswani et al.: Attention Is All You Need, NeurIPS 2017 (the maps themselves)"
    )
    cost: ClassVar[str] = "1"
    class_specific: ClassVar[bool] = False

    layer: int = -1

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        layer = read_layer(self.layer, evidence)
        return lowest_at_pooled(pooled_rows(evidence.attention[layer].mean(1), evidence), evidence)
