"""Generic Attention-model Explainability (Chefer, Gur, Wolf; ICCV 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence, MapReadings
from whence.methods.registry import Method, register
from whence.methods.shared.maps import carried, lowest_at_pooled, pooled_rows
from whence.rules.balanced import Gradients
from whence.tracing import Intervention
from whence.tracing.graph.sequences import (
    SiteSequences,
    find_input_sequence,
    find_sequences,
    is_attention_pooling,
)
from whence.tracing.trace import Trace


@register("gae")
@dataclass(frozen=True)
class Gae(Method):
    r"""Gradient-weighted attention maps, joined over layers, also across two sequences.

    With :math:`A` the attention map of a layer and :math:`\nabla A` the gradient of the class logit
    there,

    .. math::
        \bar A = \mathbb{E}_h \max(\nabla A \odot A, 0), \qquad R \leftarrow R + \bar A R

    for each layer in turn, from :math:`R = I`. The explanation is the row of :math:`R - I` that
    belongs to the token which the classifier reads; only that row is computed, from the last layer
    down to the first. A single token that is read in a text gets the lowest score of the others.

    Where a sequence s attends to another one q, as a decoder to its encoder, the paper's rules for
    self-attention in s, and for the attention of s to q, are

    .. math::
        R^{ss} \leftarrow R^{ss} + \bar A R^{ss}, \qquad R^{sq} \leftarrow R^{sq} + \bar A R^{sq}

    .. math::
        R^{sq} \leftarrow R^{sq} + (\bar R^{ss})^\top \bar A \bar R^{qq}, \qquad
        R^{ss} \leftarrow R^{ss} + \bar A R^{qs}

    with :math:`\bar R` the identity plus :math:`R - I`, whose rows are divided by their sum. The
    explanation is then the row of :math:`R^{sq}`, where q is the sequence that the first attention
    reads, and s the one that the classifier reads. Pooling by attention is no sequence of its own;
    there the row begins with :math:`\bar A`.

    Attributes:
        gradients: ``"plain"``, as the authors', or ``"balanced"``.
    """

    needs: ClassVar[tuple[str, ...]] = ("attention", "gradient")
    citation: ClassVar[str] = (
        "Chefer, Gur, Wolf: Generic Attention-model Explainability for Interpreting Bi-Modal and "
        "Encoder-Decoder Transformers, ICCV 2021"
    )
    cost: ClassVar[str] = "2, or 4 with cross-attention"
    streamed: ClassVar[bool] = True

    gradients: Gradients = "plain"

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        trace = evidence.trace
        streams = find_sequences(trace)
        pooling = is_attention_pooling(trace, streams) and evidence.pooling.shape[-1] == 1
        if any(of.is_cross and of.constant for of in streams) and not pooling:
            # The tokens that attend may have attended to each other before, unseen.
            trace = trace.rerecord(Intervention(follow_constants=True))
            streams = find_sequences(trace)
        within = streams[:-1] if is_attention_pooling(trace, streams) else streams
        if len({end for of in within for end in (of.queries, of.keys)}) > 1:
            return self._across(evidence, trace, streams)
        kept, moved = evidence.pooling, torch.zeros_like(evidence.pooling)
        for added in evidence.fuse_heads(_weighted):
            kept, moved = carried(kept, moved, added)
        return lowest_at_pooled(moved, evidence)

    def _across(self, evidence: Evidence, trace: Trace, streams: list[SiteSequences]) -> Tensor:
        """The scores in a model of several sequences."""
        explained = find_input_sequence(trace, streams)
        if trace is evidence.trace:
            layers = list(evidence.fuse_heads(_weighted))[::-1]
        else:
            places = [site.weights for site in trace.sites]
            readings = trace.read(evidence.classes, places, self.gradient_rules)
            layers = [
                _weighted(MapReadings(maps, site.split_heads(at, trace.batch), at)).mean(-3)
                for site, maps, at in zip(trace.sites, trace.attention(), readings, strict=True)
            ]
        relevancies = _Relevancies()
        for of, added in zip(streams, layers, strict=True):
            if of.is_cross:
                relevancies.attend(of.queries, of.keys, added)
            else:
                relevancies.attend_to_itself(of.queries, added)
        found = relevancies.moved.get((streams[-1].queries, explained))
        if found is None or any(of.merged for of in streams):
            raise WhenceError(
                "The attention maps do not lead from the tokens that the classifier reads to those "
                "of the input. Models with windows or merged tokens, or whose inputs meet outside "
                "of attention, cannot be explained by this method."
            )
        return lowest_at_pooled(pooled_rows(found, evidence), evidence)


def _weighted(layer: MapReadings) -> Tensor:
    return (layer.gradient * layer.attention).clamp_(min=0)


class _Relevancies:
    """The relevancy of the tokens of each sequence for those of each other one.

    Attributes:
        moved: (..., tokens of s, tokens of q) by the pair (s, q); less the identity, where both are
            one. What is not there is zero.
    """

    def __init__(self) -> None:
        self.moved: dict[tuple[int, int], Tensor] = {}

    def attend_to_itself(self, s: int, added: Tensor) -> None:
        """A self-attention: what a token is made of is handed on."""
        own = {pair: found for pair, found in self.moved.items() if pair[0] == s}
        self._add((s, s), added)
        for pair, found in own.items():
            self._add(pair, added @ found)

    def attend(self, s: int, q: int, added: Tensor) -> None:
        """The attention of one sequence to another."""
        of_q = {pair: found for pair, found in self.moved.items() if pair[0] == q}
        step = self._normalized(q, added)
        step = self._normalized(s, step.mT).mT
        for (_, other), found in of_q.items():
            if other != q:
                self._add((s, other), added @ found)
        self._add((s, q), step)

    def _normalized(self, s: int, factor: Tensor) -> Tensor:
        """A factor times the identity plus what moved within s, its rows divided by their sum."""
        moved = self.moved.get((s, s))
        if moved is None:
            return factor
        sums = moved.sum(-1, keepdim=True)
        return factor + factor @ (moved / sums.masked_fill(sums == 0, 1))

    def _add(self, pair: tuple[int, int], step: Tensor) -> None:
        known = self.moved.get(pair)
        self.moved[pair] = step if known is None else known + step
