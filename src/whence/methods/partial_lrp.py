"""Partial LRP: the relevance of one attention map (Voita et al., ACL 2019)."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import check_readable_layer, score_layer


@register("partial_lrp")
@dataclass(frozen=True)
class PartialLrp(Method):
    r"""Relevance of one attention map, the last by default, averaged over heads.

    .. math:: s = p^\top \, \mathbb{E}_h \max(R^{(b)}, 0)

    with p the weights of the pooled tokens and :math:`R^{(b)}` the relevance of the class at the
    map of layer b. With ``rules="authors_lrp"`` it is the baseline as the authors of `tiba` ran it.
    A single pooled token that is no part of the input gets the lowest score of the others.

    Attributes:
        layer: Which layer; negative numbers count from the last.
    """

    needs = ("relevance",)
    citation = (
        "Voita et al.: Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy "
        "Lifting, the Rest Can Be Pruned, ACL 2019"
    )
    cost = "1 for the last layer, up to 4 for the first"

    layer: int = -1

    @property
    @override
    def first_layer(self) -> int:
        return self.layer

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        layer = check_readable_layer(self.layer, evidence)
        relevance = evidence.relevance[layer].clamp(min=0).mean(-3)
        return score_layer(relevance, layer, evidence)
