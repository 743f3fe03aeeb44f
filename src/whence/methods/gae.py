"""GAE: gradient-weighted attention, also across sequences (Chefer, Gur, Wolf; ICCV 2021)."""

from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence, MapReadings
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    finish_rollout,
    require_layers_in_turn,
    require_unmixed_tokens,
    roll_out,
    select_pooled_rows,
)
from whence.rules.balanced import Gradients
from whence.tracing import Intervention
from whence.tracing.graph import AttentionLayer, find_layers, is_attention_pooling
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
    token that is no part of the input, such as ``[CLS]``, gets the lowest score of the others.

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
        layers = evidence.layers
        pooling = is_attention_pooling(layers) and evidence.pooling.shape[-1] == 1
        if any(one.is_cross and one.constant for one in layers) and not pooling:
            # The querying tokens may have attended to each other before, which was not recorded.
            trace = trace.rerecord(Intervention(follow_constants=True))
            layers = find_layers(trace)
        within = layers[:-1] if is_attention_pooling(layers) else layers
        sequences = {end for one in within for end in (one.queries, one.keys)}
        if len(sequences) > 1 or any(one.merged for one in within):
            return self._explain_across(evidence, trace, layers)
        require_layers_in_turn(evidence)
        require_unmixed_tokens(evidence)
        maps = evidence.fuse_heads(_weigh)
        kept, moved = roll_out(evidence.pooling, maps, pools=is_attention_pooling(layers))
        return finish_rollout(kept, moved, evidence)

    def _explain_across(
        self, evidence: Evidence, trace: Trace, layers: list[AttentionLayer]
    ) -> Tensor:
        """Score the tokens of a model with several sequences."""
        explained = _find_input_sequence(trace, layers)
        recorded = evidence
        if trace is not evidence.trace:
            recorded = evidence.derive(self.needs, self.gradient_rules, trace=trace)
        maps = list(recorded.fuse_heads(_weigh))[::-1]
        relevancies = _Relevancies()
        for numbers in _group_concurrent(trace, layers):
            before = _Relevancies(dict(relevancies.moved))
            for number in numbers:
                one = layers[number]
                steps = (
                    before.step_across(one.queries, one.keys, maps[number])
                    if one.is_cross
                    else before.step_within(one.queries, maps[number])
                )
                relevancies.add(steps)
        found = relevancies.moved.get((layers[-1].queries, explained))
        if found is None or any(one.merged for one in layers):
            raise WhenceError(
                "The attention maps do not lead from the tokens that the classifier reads to those "
                "of the input. Models with windows or merged tokens, or whose inputs meet outside "
                "of attention, cannot be explained by this method."
            )
        require_layers_in_turn(recorded)
        moved = select_pooled_rows(found, evidence)
        within = evidence.layers[0].keys == evidence.layers[-1].queries
        return finish_rollout(evidence.pooling, moved, evidence) if within else moved


def _weigh(readings: MapReadings) -> Tensor:
    return (readings.gradient * readings.attention).clamp_(min=0)


class _Relevancies:
    """The relevancy of the tokens of each sequence for the tokens of each other sequence.

    Attributes:
        moved: (..., tokens of s, tokens of q) by the pair (s, q), without the identity where s is
            q. Missing pairs are zero.
    """

    def __init__(self, moved: dict[tuple[int, int], Tensor] | None = None) -> None:
        self.moved = {} if moved is None else moved

    def step_within(self, s: int, added: Tensor) -> dict[tuple[int, int], Tensor]:
        """What a self-attention of a sequence adds."""
        steps = {pair: added @ found for pair, found in self.moved.items() if pair[0] == s}
        steps[s, s] = added + steps[s, s] if (s, s) in steps else added
        return steps

    def step_across(self, s: int, q: int, added: Tensor) -> dict[tuple[int, int], Tensor]:
        """What the attention of one sequence to another adds."""
        step = self._multiply_normalized(q, added)
        steps = {(s, q): self._multiply_normalized(s, step.mT).mT}
        for (of, other), found in self.moved.items():
            if of == q and other != q:
                steps[s, other] = added @ found
        return steps

    def add(self, steps: dict[tuple[int, int], Tensor]) -> None:
        """Add what an attention adds to each pair of sequences."""
        for pair, step in steps.items():
            known = self.moved.get(pair)
            self.moved[pair] = step if known is None else known + step

    def _multiply_normalized(self, s: int, factor: Tensor) -> Tensor:
        """Multiply a factor by the identity plus the row-normalized relevancy within s."""
        moved = self.moved.get((s, s))
        if moved is None:
            return factor
        sums = moved.sum(-1, keepdim=True)
        return factor + factor @ (moved / sums.masked_fill(sums == 0, 1))


def _group_concurrent(trace: Trace, layers: list[AttentionLayer]) -> list[list[int]]:
    """Group the numbers of successive layers of which none reads what another one writes."""
    groups: list[list[int]] = []
    writing: set[Node] = set()
    for number, layer in enumerate(layers):
        products = {trace.entries[site.product.index].output.node for site in layer.sites}
        if not groups or not writing.isdisjoint(_find_upstream(products)):
            groups.append([])
            writing = set()
        groups[-1].append(number)
        writing |= products
    return groups


def _find_upstream(nodes: set[Node]) -> set[Node]:
    """These nodes and all upstream of them."""
    seen, waiting = set(nodes), list(nodes)
    while waiting:
        more = {node for node, _ in waiting.pop().next_functions if node is not None} - seen
        seen |= more
        waiting += more
    return seen


def _find_input_sequence(trace: Trace, layers: list[AttentionLayer]) -> int:
    """The sequence of the tokens that the input became: the one its first attention reads."""
    for layer in layers:
        product = layer.sites[0].product
        waiting: list[Node | None] = [trace.entries[product.index].output.node]
        seen: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if any(getattr(node, "variable", None) is place.leaf for place in trace.inputs):
                return layer.keys
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [upstream for upstream, _ in node.next_functions]
    raise AssertionError("some attention depends on the input")
