"""AttCAT: hidden states times gradients, weighted by attention (Qiang et al.; NeurIPS 2022)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.flow_evidence import sum_received_evidence
from whence.rules.balanced import Gradients


@register("attcat")
@dataclass(frozen=True)
class AttCat(Method):
    r"""Hidden state times gradient of every token, weighted by the attention it receives.

    With :math:`h^l_i` the hidden state of token i that enters block l, :math:`\nabla h^l_i` the
    gradient of the class logit there, and :math:`\alpha^l` the attention map of the block,

    .. math::
        s_i = \sum_l \bar\alpha^l_i \sum_w \nabla h^l_{iw} h^l_{iw}, \qquad
        \bar\alpha^l_i = \mathbb{E}_{heads, q}\, \alpha^l_{qi}.

    The mean is over the queries q without padding. The hidden states are the blocks' inputs, as in
    the authors' code: the block's attention weighs them, and in the last block's output only the
    pooled tokens have a gradient. Where tokens are merged, or a key pools several, each of these
    gets an equal share; attention from another sequence does not count.

    Attributes:
        gradients: ``"plain"``, as the authors', ``"balanced"`` or ``"residual"``.
    """

    needs = ("attention", "hidden", "hidden_gradient", "blocks")
    citation = (
        "Qiang, Pan, Li, Li, Jang, Zhu: AttCAT: Explaining Transformers via Attentive Class "
        "Activation Tokens, NeurIPS 2022"
    )
    cost = "2"
    signed = True

    gradients: Gradients = "plain"

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        if evidence.flow is not None:
            return sum_received_evidence(evidence, evidence.flow)
        queries = evidence.token_mask.to(evidence.logits.dtype)
        queries = queries / queries.sum(-1, keepdim=True)
        scores = torch.zeros_like(evidence.pooling)
        # No attention reads the last hidden state.
        for attention, hidden, gradient in zip(
            evidence.attention, evidence.hidden[:-1], evidence.hidden_gradient[:-1], strict=True
        ):
            received = torch.einsum("bq,bqk->bk", queries, attention.mean(1))
            scores = scores + received * (hidden * gradient).sum(-1)
        return scores
