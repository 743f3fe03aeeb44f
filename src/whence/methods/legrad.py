"""LeGrad: gradients of each layer's own score at its attention (Bousselham et al.; ICCV 2025)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence, MapReadings
from whence.evidence.layers import find_blocks_of_stream, join_sites
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    check_layer,
    lower_pooled_token,
    require_one_sequence,
)
from whence.rules import RuleSet
from whence.rules.balanced import Gradients
from whence.tracing.graph import Block, is_attention_pooling
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.readings import MapChunks, fuse_chunks, iterate_sites
from whence.tracing.recording import edge_of
from whence.tracing.trace import Trace
from whence.tracing.views import find_dependent


@register("legrad")
@dataclass(frozen=True)
class LeGrad(Method):
    r"""Positive gradients of a score of each layer at its attention map, averaged over layers.

    What leaves layer l, :math:`Z^l`, is read by the model's own head, as what leaves the last layer
    is: with :math:`f` all that comes after the last layer, up to the target,

    .. math::
        s^l = f(\mathrm{pool}(Z^l)), \qquad
        E_j = \mathbb{E}_{l, h, i} \max\Bigl(\frac{\partial s^l}{\partial A^{l}_{hij}}, 0\Bigr)

    for each token j, with i the queries and h the heads. Scores of the input's tokens are scaled to
    0 … 1. Entries that the model masks, such as later tokens in a language model, do not count, nor
    does padding.

    Where the head pools tokens by attention, A is the map of that attention when it reads
    :math:`Z^l`, as in the authors' code.

    Attributes:
        start_layer: The first layer that counts; negative numbers count from the last. The authors'
            code takes the last two by default.
        pooling: What the head reads of a layer: ``"mean"``, the mean of all tokens in place of each
            of them, as in the authors' code; or ``"model"``, the tokens that the head reads by
            itself, such as the class token. Pooling by attention always is the model's own.
        gradients: ``"plain"``, as the authors', or another way to read gradients.
    """

    needs = ("attention", "blocks", "forwards")
    citation = (
        "Bousselham, Boggust, Chaybouti, Strobelt, Kuehne: LeGrad: An Explainability Method for "
        "Vision Transformers via Feature Formation Sensitivity, ICCV 2025"
    )
    cost = "4 + layers"
    needs_one_sequence = True

    start_layer: int = 0
    pooling: Literal["mean", "model"] = "mean"
    gradients: Gradients = "plain"

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        require_one_sequence(evidence)
        blocks = find_blocks_of_stream(evidence.trace, evidence.layers)
        first = check_layer(self.start_layer, len(blocks), "start_layer")
        _prove_tail(evidence, blocks)
        numbers = list(range(first, len(blocks)))
        at_once = max(1, evidence.forwards.rows_at_once // evidence.batch)
        if not _TokenOrder.find(evidence.trace, blocks[-1]).takes_copies:
            at_once = 1
        scores = [
            score
            for start in range(0, len(numbers), at_once)
            for score in self._score_layers(evidence, blocks, numbers[start : start + at_once])
        ]
        mean = torch.stack(scores).mean(0)
        return _scale_to_one(lower_pooled_token(mean, evidence), evidence)

    def _score_layers(
        self, evidence: Evidence, blocks: list[Block], numbers: list[int]
    ) -> Iterator[Tensor]:
        """Average the positive gradients of some layers' scores: (classes, batch, keys) each."""
        trace, rules, count = evidence.trace, self.gradient_rules, len(numbers)
        pools = is_attention_pooling(evidence.layers)
        averages = self.pooling == "mean" and not pools
        orders = [_TokenOrder.find(trace, blocks[number]) for number in numbers]
        last, in_last = blocks[-1].output, _TokenOrder.find(trace, blocks[-1])
        rows = torch.cat(
            [
                order.to_rows(blocks[number].output.output[None], evidence.batch)
                for order, number in zip(orders, numbers, strict=True)
            ],
            1,
        )
        mask = evidence.token_mask.repeat(count, 1)
        read = in_last.to_values(_average(rows, mask) if averages else rows)[0]
        tail, leaf = evidence.forwards.record_from(last.index, read, count)
        seeds = torch.cat(
            [
                evidence.targets.make_seeds(logits, by_rules=rules is not None)
                for logits in tail.logits.detach().chunk(count)
            ],
            1,
        )
        if pools:
            sites = _find_again(tail, evidence.layers[-1].sites)
            chunks = _read_sites(tail, sites, seeds, rules, None)
            fused = fuse_chunks(chunks, _clamp, "mean").mean(-2)
            yield from fused.chunk(count, 1)
            return
        (gradient,) = tail.read(seeds, [leaf], rules)
        gradient = in_last.to_rows(gradient, count * evidence.batch)
        if averages:  # a mean is its own transpose
            gradient = _average(gradient, mask)
        queries = evidence.token_mask.sum(-1, keepdim=True)
        for order, number, own in zip(orders, numbers, gradient.chunk(count, 1), strict=True):
            leaving = trace.entries[blocks[number].output.index].output
            sites = blocks[number].sites
            chunks = _read_sites(trace, sites, order.to_values(own), rules, leaving)
            yield fuse_chunks(chunks, _clamp, "mean").sum(-2) / queries


class _TokenOrder(NamedTuple):
    """How values that leave a block are laid out.

    Attributes:
        tokens: Number of tokens of a sample.
        tokens_first: Whether tokens come before samples.
        folded: Whether both are one dimension.
        takes_copies: Whether it is known how more samples would be laid out.
    """

    tokens: int
    tokens_first: bool
    folded: bool
    takes_copies: bool

    @classmethod
    def find(cls, trace: Trace, block: Block) -> "_TokenOrder":
        """Find it for the output of a block."""
        value, at = block.output.output, trace.entries[block.output.index].output
        numbers = torch.arange(value.numel(), device=value.device).reshape(value.shape)
        rows = trace.split_tokens(numbers, at, value.shape)
        batch, tokens = rows.shape[:2]
        folded = value.dim() == 2
        if folded or batch == tokens:
            tokens_first = not torch.equal(rows.flatten(), numbers.flatten())
        else:
            tokens_first = value.shape[:2] == (tokens, batch)
        return cls(tokens, tokens_first, folded, not folded or batch > 1)

    def to_rows(self, values: Tensor, batch: int) -> Tensor:
        """Values, (classes, ...) as they are laid out, as (classes, batch, tokens, width)."""
        leading = (self.tokens, batch) if self.tokens_first else (batch, self.tokens)
        rows = values.reshape(len(values), *leading, -1)
        return rows.transpose(1, 2) if self.tokens_first else rows

    def to_values(self, rows: Tensor) -> Tensor:
        """Lay out (classes, batch, tokens, width)."""
        values = rows.transpose(1, 2) if self.tokens_first else rows
        return values.flatten(1, 2) if self.folded else values


def _average(rows: Tensor, mask: Tensor) -> Tensor:
    """Put the mean of the tokens of a mask in place of each; the others become zero.

    Args:
        rows: (classes, batch, tokens, width).
        mask: (batch, tokens).
    """
    kept = mask[..., None].to(rows.dtype)
    mean = (rows * kept).sum(-2, keepdim=True) / kept.sum(-2, keepdim=True).clamp(min=1)
    return mean * kept


def _prove_tail(evidence: Evidence, blocks: list[Block]) -> None:
    """Check that the target reads the input through what leaves the last block alone.

    All blocks must put out values of one shape, so that the head can read each.
    """
    trace, last = evidence.trace, blocks[-1].output
    leaves = {edge_of(leaf).node for leaf in trace.leaves}
    cuts = {trace.entries[last.index].output.node}
    if any(find_dependent(trace.tops, leaves, trace.overwrites, cuts)):
        raise WhenceError(
            "The target reads more of the input than what leaves the last block, so that there is "
            "no head that could read the other blocks as it reads the last. Methods such as 'gae' "
            "or 'whence' work."
        )
    for block in blocks:
        if block.output.output.shape != last.output.shape:
            raise WhenceError(
                f"What leaves the block of the attention in {block.site.where} has another shape "
                f"than what leaves the last, so that the head cannot read it. Methods such as "
                f"'gae' or 'whence' work."
            )


def _find_again(tail: Trace, sites: list[AttentionSite]) -> list[AttentionSite]:
    """Find attention sites of the recorded pass in a further one."""
    by_index = {site.product.index: site for site in tail.sites}
    found = [by_index[site.product.index] for site in sites]
    for site, known in zip(found, sites, strict=True):
        site.heads_first, site.arrangement = known.heads_first, known.arrangement
    return found


def _read_sites(
    trace: Trace,
    sites: list[AttentionSite],
    seeds: Tensor,
    rules: RuleSet | None,
    start: GradientEdge | None,
) -> Iterator[MapReadings]:
    """Read maps and gradients of the heads of one layer, some queries at a time."""
    kinds = ("attention", "gradient")
    by_kind = {"gradient": seeds}
    found = iterate_sites(
        trace, sites, kinds, by_kind, {"gradient": rules}, release=False, start=start
    )
    chunks: MapChunks = next(join_sites(found, [len(sites)]))
    return chunks()


def _clamp(readings: MapReadings) -> Tensor:
    """Positive gradients, where a map is not masked."""
    return readings.gradient.clamp(min=0) * (readings.attention != 0)


def _scale_to_one(scores: Tensor, evidence: Evidence) -> Tensor:
    """Scale the scores of the input's tokens to 0 … 1; equal ones become 0, and all others."""
    mask = evidence.token_mask & evidence.layout.mark_input_tokens(scores.device)
    low = scores.masked_fill(~mask, torch.inf).amin(-1, keepdim=True)
    high = scores.masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
    spread = torch.where(high > low, high - low, 1)
    return torch.where(mask, (scores - low) / spread, 0)
