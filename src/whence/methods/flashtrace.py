"""FlashTrace: what a span of tokens was made of, hop by hop (Pan et al.; ICML 2026)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import lower_pooled_token, select_layers
from whence.methods.shared.value_vectors import project_values
from whence.targets import ReadScalars, SpanScalar, TokenScalar
from whence.tracing.graph import Block, find_projection

# So many numbers of vectors are held at a time.
_ELEMENTS_AT_ONCE = 2**24
_TINY = 1e-12


@register("flashtrace")
@dataclass(frozen=True)
class FlashTrace(Method):
    r"""How near the vectors that attention moves come to the sum they enter, over all layers.

    A target reads positions i with weights :math:`w_i`: all positions of a span at once. In each
    layer, head h moves :math:`z_{hj} = \sum_i w_i \alpha^h_{ij} f^h(x_j)` from token j to them, and
    their skip connection brings :math:`r = \sum_i w_i x_i`; x is what both are part of, the stream
    after the attention. Each has a share by its proximity to x:

    .. math::
        \mathrm{prox}(z) = \max(\lVert x \rVert_1 - \lVert z - x \rVert_1,\, 0), \qquad
        s_j = \sum_{\text{layers}} \frac{\sum_h \mathrm{prox}(z_{hj})}
            {\mathrm{prox}(r) + \sum_{hj'} \mathrm{prox}(z_{hj'})}.

    These are the information flow routes of Ferrando and Voita (EMNLP 2024), of a span together.
    Where tokens between the prompt and the target were generated (``prompt=`` of
    `targets.token` and `targets.span`), what lies on them is traced on: in each hop they are the
    positions, weighted by their scores, and what this hop gives to the prompt is added, times the
    share that had come to lie on generated tokens. These keep what the last hop left there.

    Attributes:
        hops: How often what lies on generated tokens is traced on; 0 leaves it there.
    """

    needs = ("attention", "blocks")
    citation = (
        "Pan, Liu, Wang, Yu, Jia: Towards Long-Horizon Interpretability: Efficient and Faithful "
        "Multi-Token Attribution for Reasoning LLMs, ICML 2026"
    )
    cost = "1"
    class_specific = False
    streamed = True
    needs_one_sequence = True

    hops: int = 1

    def __post_init__(self) -> None:
        """Check the option."""
        if self.hops < 0:
            raise WhenceError(f"hops={self.hops} of method 'flashtrace' must be 0 or more.")

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        select_layers(None, evidence)
        dtype = torch.promote_types(evidence.pooling.dtype, torch.float32)
        found = _trace_back(evidence, evidence.pooling.to(dtype))
        generated = _mark_generated(evidence)
        if generated is None or not self.hops:
            return lower_pooled_token(found, evidence)
        scores, left = found.masked_fill(generated, 0), found.masked_fill(~generated, 0)
        ratio = _divide(left.sum(-1, keepdim=True), found.sum(-1, keepdim=True))
        for _ in range(self.hops):
            found = ratio * _trace_back(evidence, _divide(left, left.sum(-1, keepdim=True)))
            scores, left = scores + found.masked_fill(generated, 0), found * generated
            ratio = ratio * _divide(left.sum(-1, keepdim=True), found.sum(-1, keepdim=True))
        return scores + left


def _trace_back(evidence: Evidence, weights: Tensor) -> Tensor:
    """Shares of all tokens in what positions with weights, (targets, batch, tokens), receive."""
    scores = torch.zeros_like(weights)
    for block in evidence.blocks:
        scores = scores + _share_out(evidence, block, weights)
    return scores


def _share_out(evidence: Evidence, block: Block, weights: Tensor) -> Tensor:
    """Shares of tokens, (targets, batch, tokens), in the stream after one attention."""
    trace, site = evidence.trace, block.site
    if site.query_count != site.key_count:
        raise WhenceError(
            f"The attention in {site.where} has {site.query_count} queries for {site.key_count} "
            f"keys; this method needs attention of tokens to themselves."
        )
    projection = find_projection(trace, site, block.skip_addition)
    values, spread = project_values(trace, block.sites, projection)
    edge, after = trace.entries[block.skip_addition.index].output, block.skip_addition.output
    entering = trace.split_tokens(block.input, block.input_edge, block.input.shape)
    leaving = trace.split_tokens(after, edge, after.shape)
    kept, stream = (
        torch.einsum("tbq,bqw->tbw", weights, x.detach().to(weights.dtype))
        for x in (entering, leaving)
    )
    divided = weights / spread[..., 0]
    received = weights.new_zeros(*weights.shape[:2], values.shape[1], site.key_count)
    for queries, attention in site.iterate_queries(evidence.batch):
        of_some = divided[..., queries]
        received = received + torch.einsum("tbq,bhqk->tbhk", of_some, attention.to(weights.dtype))
    near = _sum_proximities(received, values.to(weights.dtype), stream)
    whole = near.sum(-1, keepdim=True) + _measure_proximity(kept, stream)[..., None]
    return near / (whole + _TINY)


def _sum_proximities(received: Tensor, values: Tensor, stream: Tensor) -> Tensor:
    """Sum over heads how near the vectors from each token come: (targets, batch, tokens).

    Args:
        received: (targets, batch, heads, tokens), attention to each token.
        values: (batch, heads, tokens, width).
        stream: (targets, batch, width), what the vectors are part of.
    """
    step = max(1, _ELEMENTS_AT_ONCE // (received[..., 0].numel() * values.shape[-1]))
    parts = []
    for at in range(0, values.shape[2], step):
        weights = received[..., at : at + step]
        vectors = weights[..., None] * values[:, :, at : at + step]
        near = _measure_proximity(vectors, stream[:, :, None, None])
        parts.append((near * (weights != 0)).sum(2))
    return torch.cat(parts, -1)


def _measure_proximity(part: Tensor, whole: Tensor) -> Tensor:
    """Measure how much nearer a part, (..., width), comes to the whole than nothing does."""
    return (whole.abs().sum(-1) - (part - whole).abs().sum(-1)).clamp(min=0)


def _divide(values: Tensor, by: Tensor) -> Tensor:
    """Divide, and give 0 where that is by 0."""
    return values / torch.where(by == 0, 1, by)


def _mark_generated(evidence: Evidence) -> Tensor | None:
    """Mark the generated tokens that targets can read, (targets, batch, tokens); None if none."""
    if not isinstance(evidence.targets, ReadScalars):
        return None
    marked = torch.zeros(evidence.pooling.shape, dtype=torch.bool, device="cpu")
    for number, (target, _) in enumerate(evidence.targets.contrasts):
        if isinstance(target, TokenScalar | SpanScalar) and target.place.length == evidence.tokens:
            for sample, end in enumerate(target.prompt_ends):
                marked[number, sample, end : target.get_last_row(sample) + 1] = True
    return marked.to(evidence.pooling.device) if marked.any() else None
