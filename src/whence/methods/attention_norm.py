"""Norms of attention-weighted value vectors (Kobayashi et al.; EMNLP 2020 and 2021)."""

from collections.abc import Iterable, Sequence
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
from whence.methods.shared.flows import roll_out_flow
from whence.tracing.flow.flow import TokenFlow
from whence.tracing.graph import AttentionLayer, find_projection
from whence.tracing.graph.nodes import is_scaling
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.ops.base import Function, Operation, is_norm
from whence.tracing.ops.products import Linear
from whence.tracing.trace import Trace


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
        projection = find_projection(trace, block.site, block.skip_addition)
        values, spread = _project_values(trace, block.sites, projection)
        queries = block.site.query_count
        if queries != block.site.key_count:
            raise WhenceError(
                f"The attention in {block.site.where} has {queries} queries for "
                f"{block.site.key_count} keys; this method needs attention of tokens to themselves."
            )
        chunks = block.site.iterate_queries(evidence.batch)
        if self.include == "weights":
            return _compute_norms_of_sums(chunks, values) / spread
        own = spread * trace.split_tokens(block.input, block.input_edge, block.input.shape)
        if self.include == "residual" or block.post_norm is None:
            return _compute_norms_of_sums(chunks, values, own) / spread
        norm = _LinearNorm(trace, block.site.where, block.post_norm)
        norms = _compute_norms_of_sums(chunks, norm.scale(values), norm.scale(own))
        return norms / (spread * norm.spread)


def _compute_norms_in_groups(evidence: Evidence, layer: AttentionLayer) -> Tensor:
    """Compute norms within windows or other groups: (batch, groups, queries, keys).

    Without groups, they are (batch, queries, keys).
    """
    trace, site = evidence.trace, layer.sites[0]
    projection = find_projection(trace, site, layer.addition)
    values, spread = _project_values(trace, layer.sites, projection)
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


class _LinearNorm:
    """A normalisation as a linear map, with its denominators, ``spread``, held constant."""

    def __init__(self, trace: Trace, where: str, norm: Function) -> None:
        entry, x = trace.entries[norm.index], norm.inputs[0].detach()
        sums = trace.split_tokens(x, entry.inputs[0], x.shape)
        normalised = trace.split_tokens(norm.output, entry.output, norm.output.shape)
        bias, self._weight, self._centres = _probe_norm(norm)
        scaled, target = self.scale(sums), normalised - bias
        sizes = scaled.norm(dim=-1, keepdim=True)
        spread = sizes / target.norm(dim=-1, keepdim=True)
        # (batch, queries, 1); any denominator will do for zeros.
        self.spread: Tensor = torch.where(spread.isfinite() & (sizes > 0), spread, 1)
        # Many models compute their norms in float32, whatever the type of their weights is.
        eps = max(torch.finfo(dtype).eps for dtype in (sums.dtype, torch.float32))
        close = 1e3 * eps * normalised.abs().amax()
        if (scaled / self.spread - target).abs().amax() > close:
            raise WhenceError(
                f"'{norm.name}' after the attention in {where} does not normalise "
                f"each token by itself. Use include='residual', which leaves it out."
            )

    def scale(self, vectors: Tensor) -> Tensor:
        """Subtract the mean of vectors, (..., width), and multiply by the weight."""
        centred = vectors - vectors.mean(-1, keepdim=True) if self._centres else vectors
        return centred * self._weight


def _probe_norm(norm: Function) -> tuple[Tensor, Tensor, bool]:
    """Find bias and weight of a normalisation, and whether it subtracts the mean.

    They are found by calling it, so any implementation works. A vector whose mean is 0, and so long
    that the small constant in the denominator does not count, is only divided by its root mean
    square and multiplied by the weight.
    """
    ones = torch.ones_like(norm.inputs[0], requires_grad=False)
    probe = ones.clone()
    probe[..., -1] = 1 - ones.shape[-1]

    def first_row(x: Tensor) -> Tensor:
        with torch.no_grad():
            return norm.function(x).flatten(0, -2)[0]

    bias = first_row(torch.zeros_like(ones))
    at_probe = first_row(probe * 1e6) - bias
    probe = probe.flatten(0, -2)[0]
    weight = at_probe * probe.square().mean().sqrt() / probe
    centres = (first_row(ones) - bias).abs().amax() < 1e-3 * weight.abs().amax()
    return bias, weight, bool(centres)


def _project_values(
    trace: Trace, sites: Sequence[AttentionSite], projection: Sequence[Operation]
) -> tuple[Tensor, Tensor]:
    """Compute what each head adds for each token it attends to fully: (batch, heads, keys, width).

    The values of one head are put in their place among zeros, and taken through the projection that
    joins the heads, without its bias. Where a norm follows, the second tensor is its denominator
    for each query, (batch, queries, 1), by which sums over keys are yet to be divided.
    """
    values, where = sites[0].split_values(trace.batch), sites[0].where
    linear = [operation for operation in projection if isinstance(operation, Linear)]
    if len(sites) > 1 or len(linear) != 1 or linear[0].weight.dim() != 2:
        raise WhenceError(
            f"The attention in {where} is not followed by a single projection that joins its "
            f"heads, which this method needs."
        )
    if getattr(linear[0], "weight_first", False):
        raise WhenceError(f"The projection in {where} cannot be split into heads.")
    weight = linear[0].weight if type(linear[0]) is Linear else linear[0].weight.mT
    if weight.shape[1] != values.shape[-3] * values.shape[-1]:
        raise WhenceError(
            f"The projection after the attention in {where} reads more than what its heads put "
            f"out, so that it cannot be split into heads, as this method needs it."
        )
    by_head = weight.reshape(weight.shape[0], values.shape[-3], values.shape[-1])
    projected = torch.einsum("...hkd,whd->...hkw", values, by_head)
    spread = projected.new_ones(1, 1, 1)
    for operation in (one for one in projection if one is not linear[0]):
        after = operation.index > linear[0].index
        if after and isinstance(operation, Function) and is_norm(operation):
            norm = _LinearNorm(trace, where, operation)
            projected, spread = norm.scale(projected), spread * norm.spread
        else:
            projected = projected * _find_scale(where, operation)
    return projected, spread


def _find_scale(where: str, operation: Operation) -> Tensor:
    """The constant, (width,), by which an operation after the projection multiplies each token."""
    if not isinstance(operation, Function) or not is_scaling(operation):
        raise WhenceError(
            f"What follows the attention in {where} is more than a projection, a norm "
            f"and a scaling, as this method needs it to be."
        )
    scale = operation.vjp(torch.ones_like(operation.output))[0]
    row = scale.reshape(-1, scale.shape[-1])[0]
    if not torch.allclose(scale, row.expand_as(scale)):
        raise WhenceError(
            f"What follows the attention in {where} is not linear, as this method needs it to be."
        )
    return row
