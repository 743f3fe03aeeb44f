"""The default method: what each part of the input contributes to what the softmaxes can see."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from whence import rules
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    lower_pooled_token,
    require_known_layers,
    require_one_sequence,
)
from whence.methods.shared.flow_evidence import list_held, sum_flow_reads
from whence.methods.shared.links import Links, average_over_linked, sum_attention
from whence.methods.shared_evidence import SharedEvidence
from whence.rules import RuleSet
from whence.rules.balanced import Gradients
from whence.tracing.readings import MapReadings, UnmappedSite

# What attention reads of a patch counts so many times what one block finds there. The other weights
# that were tried are in docs/results/ablation.md.
_READ = 4.0
# A query sees a key of a larger weight. Some models mask by adding -100 to a score, which leaves a
# weight that rounds to 0 or not, by type and processor.
_SEEN = 1e-30


@register("whence")
@dataclass(frozen=True)
class Whence(Method):
    r"""Evidence for and against the target, as far as the model's softmaxes can see it.

    A softmax does not see what is added to all of its inputs. So the target is a logit less the
    mean of all logits, where classes or words compete; and what a query reads of a token counts
    against what it would read of the mean token. With A an attention map, :math:`\nabla A` the
    balanced gradient of the target there, and n the number of keys that query i sees, by a weight
    above 1e-30, token j is read by

    .. math:: a_j = \sum_{l, h, i} A_{ij} \Bigl(\nabla A_{ij} - \tfrac1n \sum_k \nabla A_{ik}\Bigr).

    With :math:`x_l` what enters block l of L, a token of a text, or a moment of a sound, has the
    score

    .. math:: s_j = \frac{1}{\lfloor L/2 \rfloor} \sum_{l < L/2} x_{lj} \cdot \nabla x_{lj} + a_j:

    what it holds while it still stands for itself, and what is read of it. An image, a video or a
    spectrogram may be cut along several axes, at arbitrary places. There, neighbours hold parts of
    one thing through all blocks, and

    .. math:: e_j = \sum_l x_{lj} \cdot \nabla x_{lj} + 4 a_j.

    With B the sum of all attention maps and of their transposes, among tokens that stand for a part
    of the input, each row divided by its sum, :math:`u = B \sqrt{\max(e, 0)}` is the evidence at
    the tokens that attention links to each token, and the score is the geometric mean of both,

    .. math:: s_j = \operatorname{sign}(e_j) \sqrt{|e_j|}\; u_j.

    The reading ``"location"`` says where the evidence lies, not how much a part contributes:
    :math:`B u` less its mean, above 0 on what the target is seen in.

    Attributes:
        reading: ``"evidence"`` or ``"location"``.
        start_layer: The first layer that counts; earlier ones are left out.
        gradients: ``"balanced"``, ``"residual"`` or ``"plain"``; None is ``"balanced"`` for
            evidence, and ``"residual"`` for its location.
        sharing: Deprecated: with a weight, the scores are those of ``shared_evidence``.
    """

    needs = ("attention", "gradient", "hidden", "hidden_gradient")
    citation = (
        "Of this library; balanced gradients: Mehri, Soleymani Baghshah, Pilehvar: LibraGrad: "
        "Balancing Gradient Flow for Universally Better Vision Transformer Attributions, CVPR 2025"
    )
    cost = "3"
    signed = True
    streamed = True
    sums_maps_of_texts = True
    centers_logits = True
    locates_by = (("reading", "location"),)

    reading: Literal["evidence", "location"] = "evidence"
    start_layer: int = 0
    gradients: Gradients | None = None
    sharing: float | None = None

    def __post_init__(self) -> None:
        if self.sharing is not None:
            SharedEvidence(self.sharing)
            object.__setattr__(self, "centers_logits", False)  # as that method does not
            warnings.warn(
                "The option sharing of 'whence' is deprecated: method 'shared_evidence' has it.",
                DeprecationWarning,
                stacklevel=2,
            )

    @property
    @override
    def gradient_rules(self) -> RuleSet | None:
        locates = self.reading == "location" and self.sharing is None
        usual = "residual" if locates else "balanced"
        gradients = self.gradients or usual
        return None if gradients == "plain" else rules.get(gradients)

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        if self.sharing is not None:
            return SharedEvidence(self.sharing, self.start_layer)(evidence)
        if evidence.flow is None:
            require_one_sequence(evidence, self.start_layer)
        else:
            require_known_layers(evidence, self.start_layer)
        is_cut = sum(length > 1 for length in evidence.layout.grid or ()) > 1
        linked = is_cut or self.reading == "location"
        read, links = _sum_read(evidence, self.start_layer, linked)
        held, reached = list_held(evidence, self.start_layer)  # which was read with the maps
        if is_cut:
            total = torch.stack(held).sum(0) + _READ * read
        else:
            total = torch.stack(held[: max(1, len(held) // 2)]).mean(0) + read
        mask = evidence.input_tokens & reached
        if self.reading == "location":
            return lower_pooled_token(_locate(total, mask, links), evidence)
        if is_cut:
            near = average_over_linked(total.clamp(min=0).sqrt(), mask, links)
            total = total.sign() * total.abs().sqrt() * near
        return lower_pooled_token(total, evidence)


def _sum_read(evidence: Evidence, first: int, linked: bool) -> tuple[Tensor, Links | None]:
    """Add up what queries read of each token, (targets, batch, tokens); and link tokens."""
    flow, pooling = evidence.flow, evidence.pooling
    read = pooling.new_zeros(*pooling.shape[:-1], evidence.tokens)
    numbers = reversed(range(first, len(evidence.layers)))
    if not linked and flow is None:
        for reads in evidence.sum_queries(_weigh_against_mean, _sum_against_mean, first):
            read = read + reads.to(read.dtype)
        return read, None
    weigh = _join_weighed if linked else _weigh_against_mean
    fused = evidence.fuse_heads(weigh, heads="sum", first=first)

    def iterate_maps() -> Iterator[Tensor]:
        nonlocal read
        for number, maps in zip(numbers, fused, strict=True):
            own = maps[1:] if linked else maps
            reads = own.sum(-2) if flow is None else sum_flow_reads(flow, own, number)
            if reads is not None:
                read = read + reads.to(read.dtype)
            yield maps[0]

    if linked:
        links = sum_attention(evidence, iterate_maps(), first)
        return read, links
    for _ in iterate_maps():  # one layer in memory at a time
        pass
    return read, None


def _weigh_against_mean(readings: MapReadings) -> Tensor:
    """Attention maps times their gradients less the mean over the keys that a query sees."""
    attention, gradient = readings.attention, readings.gradient
    seen = attention > _SEEN
    count = seen.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(seen, gradient, 0).sum(-1, keepdim=True) / count
    return attention * (gradient - mean)


def _sum_against_mean(site: UnmappedSite) -> Tensor | None:
    """The same summed over heads and queries, (targets, batch, keys), without maps.

    With G the gradient at the output, A its maps and V the values, the gradient at the maps is
    G V^T. So the mean over keys is G times the mean value; and of each value, all queries read its
    product with A^T G. What is added to all values changes nothing: less their mean, both terms are
    small, and hardly round.
    """
    wide = torch.promote_types(site.values.dtype, torch.float32)
    values = site.values.to(wide)
    values = values - values.mean(-2, keepdim=True)
    means = site.average_seen(values)
    if means is None:
        return None
    of_mean = (site.gradient * means).sum(-1, keepdim=True)
    read = (values * site.read_back(site.gradient)).sum(-1) - site.read_back(of_mean)[..., 0]
    return read.sum(-2)


def _join_weighed(readings: MapReadings) -> Tensor:
    """Attention maps, and these weighed by their gradients, each summed over heads."""
    weighed = _weigh_against_mean(readings).sum(-3, keepdim=True)
    attention = readings.attention[None].sum(-3, keepdim=True)
    return torch.cat([attention.to(weighed.dtype), weighed])


def _locate(total: Tensor, mask: Tensor, links: Links | None) -> Tensor:
    """Where the evidence lies: what tokens share with those they are linked to, less the mean."""
    near = average_over_linked(total.clamp(min=0).sqrt(), mask, links)
    near = average_over_linked(near, mask, links)
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    mean = (near * mask).sum(-1, keepdim=True) / count
    return torch.where(mask, near - mean, 0)
