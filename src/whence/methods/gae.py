"""GAE: gradient-weighted attention, also across sequences (Chefer, Gur, Wolf; ICCV 2021)."""

from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence, MapReadings
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import lower_pooled_token, roll_out, score_pooled_rows
from whence.rules.balanced import Gradients
from whence.tracing import Intervention
from whence.tracing.graph import (
    SiteSequences,
    find_sequences,
    is_attention_pooling,
)
from whence.tracing.trace import Trace


@register("gae")
@dataclass(frozen=True)
class Gae(Method):
    r"""Gradient-weighted attention maps, multiplied over layers, also across two sequences.

    With :math:`A` the attention map of a layer and :math:`\nabla A` the gradient of the class logit
    there,

    .. math:: \bar A = \mathbb{E}_h \max(\nabla A \odot A, 0), \qquad R \leftarrow R + \bar A R

    for each layer in turn, from :math:`R = I`. The explanation is the row of :math:`R - I` of the
    pooled token; only that row is computed, from the last layer to the first. In a text, a single
    pooled token gets the lowest score of the others.

    Where a sequence s attends to another one q, as a decoder to its encoder, the paper's rules for
    self-attention in s, and for the attention of s to q, are

    .. math::
        R^{ss} \leftarrow R^{ss} + \bar A R^{ss}, \qquad R^{sq} \leftarrow R^{sq} + \bar A R^{sq}

    .. math::
        R^{sq} \leftarrow R^{sq} + (\bar R^{ss})^\top \bar A \bar R^{qq}, \qquad
        R^{ss} \leftarrow R^{ss} + \bar A R^{qs}

    with :math:`\bar R` the identity plus :math:`R - I`, whose rows are divided by their sum. The
    explanation is then the row of :math:`R^{sq}`, where q is the sequence that the first attention
    reads, and s that of the pooled token. Attention pooling is no sequence of its own; there the
    row starts with :math:`\bar A`.

    Attributes:
        gradients: ``"plain"``, as the authors', or ``"balanced"``.
    """

    needs = ("attention", "gradient")
    citation = (
        "Chefer, Gur, Wolf: Generic Attention-model Explainability for Interpreting Bi-Modal and "
        "Encoder-Decoder Transformers, ICCV 2021"
    )
    cost = "2, or 4 with cross-attention"
    streamed = True

    gradients: Gradients = "plain"

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        trace = evidence.trace
        sequences = find_sequences(trace)
        pooling = is_attention_pooling(trace, sequences) and evidence.pooling.shape[-1] == 1
        if any(one.is_cross and one.constant for one in sequences) and not pooling:
            # The querying tokens may have attended to each other before, which was not recorded.
            trace = trace.rerecord(Intervention(follow_constants=True))
            sequences = find_sequences(trace)
        within = sequences[:-1] if is_attention_pooling(trace, sequences) else sequences
        if len({end for one in within for end in (one.queries, one.keys)}) > 1:
            return self._explain_across(evidence, trace, sequences)
        _, moved = roll_out(evidence.pooling, evidence.fuse_heads(_weigh))
        return lower_pooled_token(moved, evidence)

    def _explain_across(
        self, evidence: Evidence, trace: Trace, sequences: list[SiteSequences]
    ) -> Tensor:
        """Score the tokens of a model with several sequences."""
        explained = _find_input_sequence(trace, sequences)
        if trace is evidence.trace:
            layers = list(evidence.fuse_heads(_weigh))[::-1]
        else:
            maps_at = [site.weights for site in trace.sites]
            readings = trace.read(evidence.classes, maps_at, self.gradient_rules)
            layers = [
                _weigh(MapReadings(maps, site.split_heads(at, trace.batch), at)).mean(-3)
                for site, maps, at in zip(trace.sites, trace.attention(), readings, strict=True)
            ]
        relevancies = _Relevancies()
        for one, added in zip(sequences, layers, strict=True):
            if one.is_cross:
                relevancies.add_cross_attention(one.queries, one.keys, added)
            else:
                relevancies.add_self_attention(one.queries, added)
        found = relevancies.moved.get((sequences[-1].queries, explained))
        if found is None or any(one.merged for one in sequences):
            raise WhenceError(
                "The attention maps do not lead from the tokens that the classifier reads to those "
                "of the input. Models with windows or merged tokens, or whose inputs meet outside "
                "of attention, cannot be explained by this method."
            )
        return score_pooled_rows(found, evidence)


def _weigh(readings: MapReadings) -> Tensor:
    return (readings.gradient * readings.attention).clamp_(min=0)


class _Relevancies:
    """The relevancy of the tokens of each sequence for the tokens of each other sequence.

    Attributes:
        moved: (..., tokens of s, tokens of q) by the pair (s, q), without the identity where s is
            q. Missing pairs are zero.
    """

    def __init__(self) -> None:
        self.moved: dict[tuple[int, int], Tensor] = {}

    def add_self_attention(self, s: int, added: Tensor) -> None:
        """Add a self-attention of a sequence."""
        own = {pair: found for pair, found in self.moved.items() if pair[0] == s}
        self._add((s, s), added)
        for pair, found in own.items():
            self._add(pair, added @ found)

    def add_cross_attention(self, s: int, q: int, added: Tensor) -> None:
        """Add the attention of one sequence to another."""
        of_q = {pair: found for pair, found in self.moved.items() if pair[0] == q}
        step = self._multiply_normalized(q, added)
        step = self._multiply_normalized(s, step.mT).mT
        for (_, other), found in of_q.items():
            if other != q:
                self._add((s, other), added @ found)
        self._add((s, q), step)

    def _multiply_normalized(self, s: int, factor: Tensor) -> Tensor:
        """Multiply a factor by the identity plus the row-normalized relevancy within s."""
        moved = self.moved.get((s, s))
        if moved is None:
            return factor
        sums = moved.sum(-1, keepdim=True)
        return factor + factor @ (moved / sums.masked_fill(sums == 0, 1))

    def _add(self, pair: tuple[int, int], step: Tensor) -> None:
        known = self.moved.get(pair)
        self.moved[pair] = step if known is None else known + step


def _find_input_sequence(trace: Trace, sequences: list[SiteSequences]) -> int:
    """The sequence of the tokens that the input became: the one its first attention reads."""
    for site, of in zip(trace.sites, sequences, strict=True):
        waiting: list[Node | None] = [trace.entries[site.product.index].output.node]
        seen: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if any(getattr(node, "variable", None) is place.leaf for place in trace.inputs):
                return of.keys
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [upstream for upstream, _ in node.next_functions]
    raise AssertionError("some attention depends on the input")
