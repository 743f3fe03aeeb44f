"""DecompX: every token's vectors, carried through all layers (Modarressi et al.; ACL 2023)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.evidence.layers import find_blocks_of_stream
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import require_one_sequence
from whence.methods.shared.decomposition import Decomposition


@register("decompx")
@dataclass(frozen=True)
class DecompX(Method):
    r"""The share of each token in the class logit, carried as vectors through all layers.

    What token i is in any layer is a sum of vectors, one of each token j of the input. They start
    with the hidden states that enter the first block, :math:`x_{i \leftarrow j} = \delta_{ij} x_i`,
    and pass every operation up to the class logit, each of which is made linear at the values of
    the forward pass:

    .. math::
        \text{linear:}\quad & W x_{i \leftarrow j} \\
        \text{attention:}\quad & \sum_k \alpha_{ik} v_{k \leftarrow j} \\
        \text{norm:}\quad & \gamma \odot (x_{i \leftarrow j} - \mathrm{mean}(\cdot)) / \sigma_i \\
        \text{activation:}\quad & x_{i \leftarrow j} \odot f(x_i) / x_i

    A bias b is shared among the tokens, in proportion to
    :math:`\lvert \langle b, x_{i \leftarrow j} \rangle \rvert` with the vectors that it is added
    to; those of an attention's values and projection after the sum with its skip connection. So the
    scores of all tokens sum to the logit.
    """

    needs = ("attention", "blocks", "forwards")
    citation = (
        "Modarressi, Fayyaz, Aghazadeh, Yaghoobzadeh, Pilehvar: DecompX: Explaining Transformers "
        "Decisions by Propagating Token Decomposition, ACL 2023"
    )
    cost = "3 + tokens"
    signed = True
    needs_one_sequence = True

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        require_one_sequence(evidence)
        blocks = find_blocks_of_stream(evidence.trace, evidence.layers)
        decomposition = Decomposition(evidence.trace, evidence.layers, blocks)
        seeds = evidence.targets.make_seeds(evidence.logits)
        forwards, tokens = evidence.forwards, decomposition.tokens
        if tokens != evidence.tokens:
            raise WhenceError(
                f"{tokens} tokens enter the first block, and {evidence.tokens} stand for the "
                f"input; this method needs them to be the same."
            )
        every = torch.arange(evidence.batch, device=evidence.logits.device)
        scores = []
        at_once = max(1, forwards.rows_at_once // tokens)
        for chunk in forwards.chunks(evidence.batch, "decomposing", at_once):
            samples = every[chunk]
            rows = samples.repeat_interleave(tokens)
            parts = forwards.run_edited(rows, decomposition.make_edits(samples))
            parts = parts.reshape(len(samples), tokens, -1)
            scores.append(torch.einsum("nsc,stc->nst", seeds[:, chunk], parts))
        return torch.cat(scores, 1)
