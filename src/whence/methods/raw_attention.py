"""Raw attention: one attention map as it is."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import check_readable_layer, score_layer


@register("raw_attention")
@dataclass(frozen=True)
class RawAttention(Method):
    r"""The attention of one layer from the pooled tokens, averaged over heads.

    .. math:: s = p^\top \, \mathbb{E}_h A^{(b)}

    with :math:`A^{(b)}` the attention map of layer b, and p the weights of the pooled tokens. A
    single pooled token of a text that is no part of the input, such as ``[CLS]``, gets the lowest
    score of the others: its being pooled says nothing about the input. (The authors of TIBA set
    it to 0.)

    In windows, merged tokens and across sequences, p comes to layer b along residual streams alone,
    and what arrives at its keys goes to the tokens of the input that these are made of, in equal
    shares.

    Attributes:
        layer: Which layer; negative numbers count from the last.
    """

    needs = ("attention",)
    citation = "Vaswani et al.: Attention Is All You Need, NeurIPS 2017 (the maps themselves)"
    cost = "1"
    class_specific = False

    layer: int = -1

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        layer = check_readable_layer(self.layer, evidence)
        return score_layer(evidence.attention[layer].mean(-3), layer, evidence)
