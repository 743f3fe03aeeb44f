"""GAE: gradient-weighted attention, also across sequences (Chefer, Gur, Wolf; ICCV 2021)."""

from dataclasses import dataclass
from functools import reduce
from typing import Literal

from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence, MapReadings
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    check_layer,
    finish_rollout,
    lower_pooled_token,
    require_known_layers,
    require_layers_in_turn,
    require_unmixed_tokens,
    roll_out,
    roll_out_layers,
    select_pooled_rows,
)
from whence.methods.shared.relevancies import Relevancies, RelevancyRules, ZeroRows
from whence.methods.shared.sequences import (
    find_input_sequence,
    find_related_pairs,
    group_concurrent,
    has_unseen_queries,
)
from whence.rules.balanced import Gradients
from whence.tracing import Intervention
from whence.tracing.graph import (
    AttentionLayer,
    find_layers,
    is_attention_pooling,
    is_sequential,
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
    pooled token; only that row is computed, from the last layer to the first. Where a pooled token
    is a part of the input, such as the last one of a language model, it is the row of R: what the
    token keeps of itself through skip connections belongs to its score. In a text, a single pooled
    token that is no part of the input, such as ``[CLS]``, gets the lowest score of the others. (The
    authors set it to 0.)

    Where a sequence s attends to another one q, as a decoder to its encoder, the paper's rules for
    self-attention in s (6 and 7), and for the attention of s to q (10 and 11), are

    .. math::
        R^{ss} \leftarrow R^{ss} + \bar A R^{ss}, \qquad R^{sq} \leftarrow R^{sq} + \bar A R^{sq}

    .. math::
        R^{sq} \leftarrow R^{sq} + (\hat R^{ss})^\top \bar A \hat R^{qq}, \qquad
        R^{ss} \leftarrow R^{ss} + \bar A R^{qs}

    with :math:`\hat R` the identity plus :math:`R - I`, whose rows are divided by their sum (8 and
    9). The explanation is then the row of :math:`R^{sq}`, where q is the sequence that the first
    attention reads, and s that of the pooled token. Attentions of which none reads what another
    writes, such as two sequences that attend to each other in one layer, all start from the same R.
    Attention pooling is no sequence of its own; there the row starts with :math:`\bar A`.

    Attributes:
        start_layer: The first layer that counts, in the order of computation; negative numbers
            count from the last. Earlier layers are left out.
        contribution: What is weighted by the gradient: the ``"attention"``, or the ``"relevance"``
            of the class there, which replaces A in :math:`\bar A` and goes by ``rules``.
        normalize_self_attention: Whether rule 10 takes :math:`\hat R`; if not, R as it is.
        apply_self_in_rule_10: Whether rule 10 takes :math:`\hat R` at all; if not, it is
            :math:`R^{sq} \leftarrow R^{sq} + \bar A`.
        zero_rows: What 0/0 means, where a row of :math:`R - I` is all zeros: ``"identity"``, the
            row of the identity stays alone; ``"drop"``, rule 10 adds nothing for this attention, as
            in the authors' code for DETR; ``"refuse"``, an error, where the authors' code for
            LXMERT gives NaN.
        aggregate: Whether each rule adds to R; if not, what it adds takes the place of R, and
            nothing is normalized. An ablation of the authors.
        gradients: ``"plain"``, as the authors', ``"balanced"`` or ``"residual"``.
    """

    needs = ("attention", "gradient")
    citation = (
        "Chefer, Gur, Wolf: Generic Attention-model Explainability for Interpreting Bi-Modal and "
        "Encoder-Decoder Transformers, ICCV 2021"
    )
    cost = "2, or 4 with cross-attention"
    streamed = True

    start_layer: int = 0
    contribution: Literal["attention", "relevance"] = "attention"
    normalize_self_attention: bool = True
    apply_self_in_rule_10: bool = True
    zero_rows: ZeroRows = "identity"
    aggregate: bool = True
    gradients: Gradients = "plain"

    def __post_init__(self) -> None:
        if self.contribution == "relevance":
            object.__setattr__(self, "needs", (*type(self).needs, "relevance"))

    @override
    def scores_copies(self, evidence: Evidence) -> bool:
        return not _has_rules(evidence.trace, evidence.layers)

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        trace, layers = evidence.trace, evidence.layers
        if evidence.flow is not None and not _has_rules(trace, layers):
            return self._follow_flow(evidence)
        pooling = is_attention_pooling(layers) and evidence.last_pooling.shape[-1] == 1
        if any(has_unseen_queries(trace, one) for one in layers) and not pooling:
            # The querying tokens may have attended to each other before, which was not recorded.
            trace = trace.rerecord(Intervention(follow_constants=True))
            layers = find_layers(trace)
        first = check_layer(self.start_layer, len(layers), "start_layer")
        within = layers[:-1] if is_attention_pooling(layers) else layers
        sequences = {end for one in within for end in (one.queries, one.keys)}
        if len(sequences) > 1 or any(one.merged for one in within):
            return self._explain_across(evidence, trace, layers, first)
        require_layers_in_turn(evidence)
        require_unmixed_tokens(evidence)
        maps = evidence.fuse_heads(self._weigh, first=first)
        if not self.aggregate:
            rows = reduce(lambda rows, one: rows @ one, maps, evidence.pooling[..., None, :])
            return lower_pooled_token(rows[..., 0, :], evidence)
        kept, moved = roll_out(evidence.pooling, maps, pools=is_attention_pooling(layers))
        return finish_rollout(kept, moved, evidence)

    def _follow_flow(self, evidence: Evidence) -> Tensor:
        """Score the tokens of a model with windows or merged tokens, by rule 6 alone."""
        if not self.aggregate:
            raise WhenceError(
                "aggregate=False is not possible where tokens are in windows or merged: leave it "
                "out."
            )
        first = check_layer(self.start_layer, len(evidence.layers), "start_layer")
        require_known_layers(evidence, first)
        maps = evidence.fuse_heads(self._weigh, first=first)
        return finish_rollout(*roll_out_layers(evidence, maps), evidence)

    def _explain_across(
        self, evidence: Evidence, trace: Trace, layers: list[AttentionLayer], first: int
    ) -> Tensor:
        """Score the tokens of a model with several sequences."""
        explained, groups = find_input_sequence(trace, layers), group_concurrent(trace, layers)
        pair = layers[-1].queries, explained
        leads = pair in find_related_pairs(layers, groups)
        if not leads or any(one.merged for one in layers) or not is_sequential(trace):
            if evidence.flow is not None:
                return self._follow_flow(evidence)
            require_layers_in_turn(evidence)
            raise WhenceError(
                "The attention maps do not lead from the tokens that the classifier reads to those "
                "of the input. Models with windows or merged tokens, or whose inputs meet outside "
                "of attention, cannot be explained by this method."
            )
        if pair not in find_related_pairs(layers, groups, first):
            raise WhenceError(
                f"start_layer={self.start_layer} leaves out all attention that leads from the "
                f"tokens that the classifier reads to those of the input: choose an earlier one."
            )
        recorded = evidence
        if trace is not evidence.trace:
            recorded = evidence.derive(evidence.needs, self.gradient_rules, trace=trace)
            evidence.recorded_anew = recorded
        rules = RelevancyRules(
            self.normalize_self_attention,
            self.apply_self_in_rule_10,
            self.zero_rows,
            self.aggregate,
        )
        marks_padding = rules.divides and self.zero_rows != "identity"
        maps, real = self._read_maps(recorded, layers, first, marks_padding)
        relevancies = Relevancies(rules, real)
        for numbers in groups:
            relevancies.pass_concurrent(
                [(layers[n].queries, layers[n].keys, maps[n]) for n in numbers if n >= first]
            )
        undefined = relevancies.undefined
        if self.zero_rows == "refuse" and undefined is not None:
            _refuse_zero_rows(trace, undefined)
        moved = select_pooled_rows(relevancies.moved[pair], evidence)
        within = evidence.layers[0].keys == evidence.layers[-1].queries
        if within and self.aggregate:
            return finish_rollout(evidence.pooling, moved, evidence)
        return lower_pooled_token(moved, evidence)

    def _read_maps(
        self, evidence: Evidence, layers: list[AttentionLayer], first: int, marks_padding: bool
    ) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Maps by the number of their layer; and which tokens of each sequence are attended to.

        Nothing attends to padding.
        """
        attended: list[Tensor] = []

        def weigh(readings: MapReadings) -> Tensor:
            if marks_padding:
                attended.append((readings.attention != 0).any(-2).any(-2))
            return self._weigh(readings)

        maps, real = dict[int, Tensor](), dict[int, Tensor]()
        numbers = reversed(range(first, len(layers)))
        for number, one in zip(numbers, evidence.fuse_heads(weigh, first=first), strict=True):
            maps[number] = one
            keys = layers[number].keys
            for marks in attended:
                real[keys] = real[keys] | marks if keys in real else marks
            attended.clear()
        return maps, real

    def _weigh(self, readings: MapReadings) -> Tensor:
        of_class = self.contribution == "relevance"
        weighted = readings.relevance if of_class else readings.attention
        return (readings.gradient * weighted).clamp_(min=0)


def _has_rules(trace: Trace, layers: list[AttentionLayer]) -> bool:
    """Whether the paper has rules for all layers: self-attention, and attention to another one."""
    within = layers[:-1] if is_attention_pooling(layers) else layers
    crosses = any(one.is_cross and one.skip is not None for one in within)
    return crosses and not any(one.merged for one in within) and is_sequential(trace)


def _refuse_zero_rows(trace: Trace, undefined: Tensor) -> None:
    if trace.guard.look_at(undefined.any()):
        raise WhenceError(
            "A row of R - I is all zeros, which cannot be divided by its sum, and "
            "zero_rows='refuse' asks for an error then: choose 'identity' or 'drop', or "
            "normalize_self_attention=False."
        )
