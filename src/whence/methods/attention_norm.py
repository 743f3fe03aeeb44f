"""Norms of attention-weighted value vectors (Kobayashi et al.; EMNLP 2020 and 2021)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    add_own_share,
    multiply_layers,
    normalize_rows,
    require_known_layers,
    select_layers,
)
from whence.methods.shared.block_vectors import find_vectors, require_own_tokens
from whence.methods.shared.flows import roll_out_flow
from whence.methods.shared.value_vectors import project_values
from whence.tracing.flow.flow import TokenFlow
from whence.tracing.graph import AttentionLayer, find_projection


@register("attention_norm", aliases=("norm_based",))
@dataclass(frozen=True)
class AttentionNorm(Method):
    r"""Norms of the vectors that each token adds to the pooled tokens through attention.

    The attention of a layer adds to token i, from each token j,

    .. math:: v_{ij} = \sum_h \alpha^h_{ij} f^h(x_j),

    with :math:`\alpha` the attention map and :math:`f^h(x_j)` the value of token j in head h, its
    bias included, multiplied by the output projection, without its bias. Heads are added as
    vectors, and the norm is taken of the sum. As ``include`` says,

    .. math::
        N_{ij} = \lVert v_{ij} \rVert, \quad
        \lVert v_{ij} + \delta_{ij} x_i \rVert, \quad
        \Bigl\lVert \gamma \odot
        \frac{v_{ij} + \delta_{ij} x_i - \mathrm{mean}(\cdot)}{\sigma_i} \Bigr\rVert

    with :math:`x_i` from the skip connection, and :math:`\gamma` and :math:`\sigma_i` the weight
    and the denominator of the normalisation right after the sum, where there is one, as in BERT. In
    models that normalise before the attention, the norm is already in the values, and
    ``"layer_norm"`` is the same as ``"residual"``. Where the attention's output is normalised
    before it is added, as in Gemma 2, :math:`v_{ij}` is taken through that norm, with its
    denominator as for the whole output. Rows of N are divided by their sum. Layers are
    multiplied as in attention rollout; for ``"weights"``, which lacks the skip connection, the
    identity is added; the product of identities alone counts for a pooled token that is a part of
    the input, as in `tiba`. Where tokens are in windows, merged or in several sequences, that holds
    for ``"weights"``, as `rollout` does it.

    Attributes:
        include: ``"weights"``: attention alone; ``"residual"``: with the skip connection;
            ``"layer_norm"``: also with the normalisation after both.
        layer: One layer alone; negative numbers count from the last; None multiplies all layers.
    """

    needs = ("attention", "blocks")
    citation = (
        "Kobayashi, Kuribayashi, Yokoi, Inui: Attention is Not Only a Weight: Analyzing "
        "Transformers with Vector Norms, EMNLP 2020; Incorporating Residual and Normalization "
        "Layers into Analysis of Masked Language Models, EMNLP 2021"
    )
    cost = "1"
    class_specific = False
    streamed = True

    include: Literal["weights", "residual", "layer_norm"] = "weights"
    layer: int | None = None

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        if evidence.flow is not None:
            return self._follow_flow(evidence, evidence.flow)
        layers = select_layers(self.layer, evidence)
        matrices = (self._compute_norms(evidence, layer) for layer in reversed(layers))
        add_identity = self.include == "weights" and self.layer is None
        return multiply_layers(matrices, evidence, add_identity)

    def _follow_flow(self, evidence: Evidence, flow: TokenFlow) -> Tensor:
        """Score tokens in windows, merged or of several sequences."""
        if self.include != "weights" or self.layer is not None:
            raise WhenceError(
                "Where tokens are in windows, merged or in several sequences, this method has "
                "include='weights' of all layers alone: leave its options out."
            )
        require_known_layers(evidence)
        maps = (
            normalize_rows(_compute_norms_in_groups(evidence, layer))
            for layer in reversed(evidence.layers)
        )
        return add_own_share(*roll_out_flow(evidence, flow, maps, normalize=True), evidence)

    def _compute_norms(self, evidence: Evidence, layer: int) -> Tensor:
        """Compute the norms of the vectors from each key to each query: (batch, queries, keys)."""
        trace, block = evidence.trace, evidence.blocks[layer]
        chunks = block.site.iterate_queries(evidence.batch)
        if self.include == "weights":
            projection = find_projection(trace, block.site, block.skip_addition)
            values, spread = project_values(trace, block.sites, projection)
            require_own_tokens(block.site)
            return _compute_norms_of_sums(chunks, values) / spread
        vectors = find_vectors(trace, block, with_norm=self.include == "layer_norm")
        return _compute_norms_of_sums(chunks, vectors.values, vectors.own) / vectors.spread


def _compute_norms_in_groups(evidence: Evidence, layer: AttentionLayer) -> Tensor:
    """Compute norms within windows or other groups: (batch, groups, queries, keys).

    Without groups, they are (batch, queries, keys).
    """
    trace, site = evidence.trace, layer.sites[0]
    projection = find_projection(trace, site, layer.addition)
    values, spread = project_values(trace, layer.sites, projection)
    chunks = (
        (rows, attention.flatten(0, -4)) for rows, attention in site.iterate_queries(evidence.batch)
    )
    norms = _compute_norms_of_sums(chunks, values.flatten(0, -4)) / spread
    return norms.reshape(*values.shape[:-3], *norms.shape[1:])


def _compute_norms_of_sums(
    chunks: Iterable[tuple[slice, Tensor]], values: Tensor, own: Tensor | None = None
) -> Tensor:
    r"""Compute the norms of sums over heads, :math:`\alpha^T G \alpha`.

    G are the inner products of the heads' vectors. The vectors of all pairs of tokens, which would
    not fit into memory, are never computed.

    Args:
        chunks: Maps of some queries at a time, (batch, heads, some queries, keys).
        values: (batch, heads, keys, width).
        own: (batch, tokens, width), of each token's own skip connection.
    """
    inner = torch.einsum("bhkw,bgkw->bkhg", values, values)
    rows = []
    for queries, attention in chunks:
        squares = (torch.einsum("bhqk,bkhg->bgqk", attention, inner) * attention).sum(1)
        norms = squares.clamp_(min=0).sqrt_()
        if own is not None:
            to_itself = attention[..., queries].diagonal(dim1=-2, dim2=-1)
            vectors = torch.einsum("bht,bhtw->btw", to_itself, values[:, :, queries])
            vectors = vectors + own[:, queries]
            norms[..., queries].diagonal(dim1=-2, dim2=-1).copy_(vectors.norm(dim=-1))
        rows.append(norms)
    return torch.cat(rows, 1)
