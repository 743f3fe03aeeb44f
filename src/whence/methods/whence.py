"""The method of this library: evidence that tokens hold, shared along attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.maps import check_layer, content, lowest_at_pooled, one_sequence
from whence.rules.balanced import Gradients

# Patches cut objects wherever the grid runs, so that evidence for one is evidence for its
# neighbours in the same object; words are units of their own.
_SHARING = {"image": 2.0, "text": 0.25}


@register("whence")
@dataclass(frozen=True)
class Whence(Method):
    r"""Evidence for the class that tokens hold in all layers, shared along attention.

    With :math:`x_l` the hidden state of a token that enters block l and :math:`\nabla x_l` the
    balanced gradient of the class logit there, a token holds

    .. math:: e = \sum_l \max(x_l \cdot \nabla x_l, 0).

    With :math:`\bar A` the mean of all attention maps, two tokens are bound by
    :math:`B = \bar A + \bar A^\top`, among the tokens that stand for a part of the input; rows of B
    are divided by their sum. With s the weight of sharing, a token gets

    .. math:: \frac{\sqrt{e} + s\, B \sqrt{e}}{1 + s}

    in an image, where scores are interpolated between patches, and the square of that in a text,
    where scores of tokens add up to those of words. A single token that is read in a text gets the
    lowest score of the others.

    Attributes:
        sharing: The weight s of what other tokens hold, against a token's own; None is 2 for images
            and 0.25 for texts.
        start_layer: The first layer that takes part; earlier ones are left out.
        gradients: ``"balanced"``, or ``"plain"``.
    """

    needs: ClassVar[tuple[str, ...]] = ("attention", "hidden", "hidden_gradient")
    citation: ClassVar[str] = (
        "Of this library; balanced gradients: Mehri, Soleymani Baghshah, Pilehvar: LibraGrad: "
        "Balancing Gradient Flow for Universally Better Vision Transformer Attributions, CVPR 2025"
    )
    cost: ClassVar[str] = "2"
    streamed: ClassVar[bool] = True

    sharing: float | None = None
    start_layer: int = 0
    gradients: Gradients = "balanced"

    def __post_init__(self) -> None:
        if self.sharing is not None and not 0 <= self.sharing < math.inf:
            raise WhenceError(f"sharing is a weight of 0 or more, not {self.sharing}.")

    @property
    def first_site(self) -> int:  # noqa: D102
        return self.start_layer

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        one_sequence(evidence)
        check_layer(self.start_layer, evidence)
        image = evidence.layout.grid is not None
        sharing = _SHARING["image" if image else "text"] if self.sharing is None else self.sharing
        roots = _held(evidence, self.start_layer).sqrt()
        scores = (roots + sharing * _of_others(roots, evidence, self.start_layer)) / (1 + sharing)
        return lowest_at_pooled(scores if image else scores**2, evidence)


def _held(evidence: Evidence, first: int) -> Tensor:
    """(classes, batch, tokens): the evidence for the class that enters blocks."""
    layers = slice(first, len(evidence.trace.sites))
    entering = zip(evidence.hidden[layers], evidence.hidden_gradient[layers], strict=True)
    held = [(hidden * gradient).sum(-1).clamp_(min=0) for hidden, gradient in entering]
    return torch.stack(held).sum(0)


def _of_others(values: Tensor, evidence: Evidence, first: int) -> Tensor:
    """The mean of a value over the tokens that each token is bound to by attention."""
    attended = _attended(evidence, first)
    if attended is None:
        return values
    bonds = attended + attended.mT
    shared = content(evidence, values.shape[-1])
    weights = shared.to(values.dtype)
    total = (bonds @ weights[..., None])[..., 0]
    found = (bonds @ (weights * values)[..., None])[..., 0]
    return torch.where(shared & (total > 0), found / total.masked_fill(total == 0, 1), values)


def _attended(evidence: Evidence, first: int) -> Tensor | None:
    """(batch, tokens, tokens): attention summed over layers; None if no token attends to others.

    A sum serves as well as the mean, since rows are divided by theirs.
    """
    summed = None
    for weights in evidence.fuse_heads(lambda layer: layer.attention, first=first):
        # The last map may be one of pooling by attention, which binds no two tokens.
        if weights.shape[-2] == weights.shape[-1]:
            summed = weights if summed is None else summed.add_(weights)
    return summed
