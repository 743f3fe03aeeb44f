"""Layer-wise Relevance Propagation down to the input (Bach et al., 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import summed


@register("lrp")
@dataclass(frozen=True)
class Lrp(Method):
    r"""Relevance propagated from the class through every operation down to pixels or embeddings.

    Relevance starts as the one-hot vector of the class at the logits and passes each operation by
    the chosen rules, ``rules=...``. A token's score is the sum over its numbers,

    .. math:: s_i = \sum_{d} R(x_{id}),

    those of the pixels of a patch or of the width of an embedding. With ``rules="authors_lrp"``
    this is the baseline that the authors of `tiba` compared with, in which positive and negative
    products are divided by sums of their own, so that relevance grows at every linear layer; with
    ``"reference"`` it is their own rules taken down to the input. Under these, scores may be below
    zero; under ``"stable"`` they never are.
    """

    needs: ClassVar[tuple[str, ...]] = ("input_relevance",)
    citation: ClassVar[str] = (
        "Bach et al.: On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise "
        "Relevance Propagation, PLOS ONE 2015"
    )
    cost: ClassVar[str] = "4"
    signed: ClassVar[bool] = True

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        relevance = evidence.input_relevance
        assert relevance is not None
        return summed(evidence, relevance)
