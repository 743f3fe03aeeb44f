"""Layer-wise Relevance Propagation (LRP) to the input (Bach et al., 2015)."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import sum_over_tokens


@register("lrp")
@dataclass(frozen=True)
class Lrp(Method):
    r"""Relevance propagated from the class through every operation to pixels or embeddings.

    Relevance starts as the one-hot vector of the class at the logits and is propagated through each
    operation by the chosen rules, ``rules=...``. A token's score is the sum

    .. math:: s_i = \sum_{d} R(x_{id}),

    over the pixels of a patch or the width of an embedding. With ``rules="authors_lrp"`` this is
    the baseline that the authors of `tiba` compared with, in which positive and negative products
    are divided by sums of their own, so that relevance grows at every linear layer; with
    ``"reference"`` it applies their own rules down to the input. Under these, scores may be below
    zero; under ``"stable"`` they never are.
    """

    needs = ("input_relevance",)
    citation = (
        "Bach et al.: On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise "
        "Relevance Propagation, PLOS ONE 2015"
    )
    cost = "4"
    signed = True

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        return sum_over_tokens(evidence, evidence.input_relevance)
