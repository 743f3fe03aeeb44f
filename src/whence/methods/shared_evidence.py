"""Evidence for the class at each token, shared along attention: the default of whence 0.2."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    lower_pooled_token,
    require_known_layers,
    require_one_sequence,
)
from whence.methods.shared.flow_evidence import list_held
from whence.methods.shared.links import average_over_linked, sum_attention
from whence.rules.balanced import Gradients

# Patches cut objects at arbitrary places, so evidence at one is evidence for its neighbours in the
# same object; words are units by themselves. In a sound, all that is heard attends to the moment
# that decides: much sharing would give its evidence to all others (docs/results/media.md).
_SHARING = {"patches": 2.0, "segments": 0.25, "words": 0.25}


@register("shared_evidence")
@dataclass(frozen=True)
class SharedEvidence(Method):
    r"""Positive evidence at each token, summed over layers and shared along attention.

    This was the default method, ``whence``, of release 0.2.

    With :math:`x_l` the hidden state of a token that enters block l and :math:`\nabla x_l` the
    balanced gradient of the class logit there, the evidence at a token is

    .. math:: e = \sum_l \max(x_l \cdot \nabla x_l, 0).

    With :math:`\bar A` the mean of all attention maps, :math:`B = \bar A + \bar A^\top` links two
    tokens, among the tokens that represent a part of the input and that the class depends on, as it
    does not on what stands after a generated word; rows of B are divided by their sum.
    With s the weight of sharing, the score of a token is

    .. math:: \frac{\sqrt{e} + s\, B \sqrt{e}}{1 + s}

    in an image or a signal, where scores are interpolated, and the square of that in a text,
    where scores of tokens add up to those of words. A pooled token that is a part of the input is
    scored like any other, by the evidence that it holds. In a text, a single pooled token that is
    no part of the input, such as ``[CLS]``, gets the lowest score of the others.

    Where tokens are in windows, merged or in several sequences, the evidence of a layer's token is
    shared among the tokens of the input that it is made of, and attention links these. Layers whose
    tokens are made of no part of the input do not count. Where what enters a block cannot be read,
    the attention's values count in its place.

    Attributes:
        sharing: The weight s of other tokens' evidence, against a token's own; None is 2 for images
            and videos, and 0.25 for signals and texts.
        start_layer: The first layer that counts; earlier ones are left out.
        gradients: ``"balanced"``, ``"residual"`` or ``"plain"``.
    """

    needs = ("attention", "hidden", "hidden_gradient")
    citation = (
        "Of this library; balanced gradients: Mehri, Soleymani Baghshah, Pilehvar: LibraGrad: "
        "Balancing Gradient Flow for Universally Better Vision Transformer Attributions, CVPR 2025"
    )
    cost = "2"
    streamed = True

    sharing: float | None = None
    start_layer: int = 0
    gradients: Gradients = "balanced"

    def __post_init__(self) -> None:
        if self.sharing is not None and not 0 <= self.sharing < math.inf:
            raise WhenceError(f"sharing is a weight of 0 or more, not {self.sharing}.")

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        if evidence.flow is None:
            require_one_sequence(evidence, self.start_layer)
        else:
            require_known_layers(evidence, self.start_layer)
        axes = len(evidence.layout.grid or ())
        cut, units = axes > 0, ("words", "segments", "patches")[min(axes, 2)]
        sharing = _SHARING[units] if self.sharing is None else self.sharing
        squares, reached = list_held(evidence, self.start_layer, positive=True)
        roots = torch.stack(squares).sum(0).sqrt()
        maps = evidence.fuse_heads(lambda readings: readings.attention, first=self.start_layer)
        links = sum_attention(evidence, maps, self.start_layer)
        others = average_over_linked(roots, evidence.input_tokens & reached, links)
        scores = (roots + sharing * others) / (1 + sharing)
        return lower_pooled_token(scores if cut else scores**2, evidence)
