"""Formulas of methods in plain loops, over what a model itself returns for one sample."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

METHODS = ("rollout", "gae", "tiba", "whence", "input_x_gradient")


@dataclass
class Plain:
    """What a model itself gives for one sample, with gradients enabled.

    Attributes:
        logit: The scalar that is explained.
        maps: (1, heads, tokens, tokens) for each layer that the logit depends on, first one first.
        hidden: (1, tokens, width), what enters each of these layers.
        inputs: Pixels, or embeddings (1, tokens, width): the leaf that everything depends on.
        read: How much the head reads each token, by position; sums to 1.
        units: The positions of the tokens that get a score.
        content: The positions of tokens that are part of the input; all units if left out.
        sum_to_units: Sums values of one sample's inputs over units, where a row is no unit.
        is_image: Whether tokens are patches, or segments of a signal.
        is_signal: Whether they are segments, which share less evidence.
        tokens_first: Whether hidden states are (tokens, 1, width).
        side_by_side: How many successive maps are heads of one layer.
        keeps_identity: Whether the skip's share of a token that is read counts.
    """

    logit: Tensor
    maps: list[Tensor]
    hidden: list[Tensor]
    inputs: Tensor
    read: dict[int, float]
    units: list[int]
    content: list[int] = field(default_factory=list)
    sum_to_units: Callable[[Tensor], Tensor] | None = None
    is_image: bool = False
    is_signal: bool = False
    keeps_identity: bool = True
    tokens_first: bool = False
    side_by_side: int = 1

    def gradients(self, of: list[Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(self.logit, of, retain_graph=True))

    def join_heads(self, of_maps: list[Tensor]) -> list[Tensor]:
        """Values at all maps, (1, heads, tokens, tokens), as (heads, tokens, tokens) of layers."""
        step = self.side_by_side
        groups = [of_maps[n : n + step] for n in range(0, len(of_maps), step)]
        return [torch.cat([one[0] for one in group]).detach() for group in groups]


def compute_scores(method: str, plain: Plain, relevance: list[Tensor] | None = None) -> Tensor:
    """Scores of the units by a method's formula; `tiba` takes the relevance of the maps."""
    if method == "rollout":
        added = [one.mean(0) for one in plain.join_heads(plain.maps)]
        return _multiply(added, plain, normalize=True)[plain.units]
    if method == "gae":
        return _multiply(_weigh(plain, plain.join_heads(plain.maps)), plain)[plain.units]
    if method == "tiba":
        assert relevance is not None
        return _multiply(_weigh(plain, relevance), plain)[plain.units]
    if method == "whence":
        return _share_evidence(plain)[plain.units]
    assert method == "input_x_gradient"
    (gradient,) = plain.gradients([plain.inputs])
    product = (plain.inputs * gradient)[0].detach()
    return plain.sum_to_units(product) if plain.sum_to_units else product.sum(-1)[plain.units]


def sum_patches(product: Tensor, side: int = 8) -> Tensor:
    """Sum (channels, height, width) over square patches, one by one: (patches,)."""
    _, height, width = product.shape
    corners = [(y, x) for y in range(0, height, side) for x in range(0, width, side)]
    return torch.stack([product[:, y : y + side, x : x + side].sum() for y, x in corners])


def _weigh(plain: Plain, by: list[Tensor]) -> list[Tensor]:
    """The mean over heads of max(gradient * factor, 0), for each layer."""
    gradients = plain.join_heads(plain.gradients(plain.maps))
    pairs = zip(gradients, by, strict=True)
    return [(gradient * factor).clamp(min=0).mean(0) for gradient, factor in pairs]


def _multiply(added: list[Tensor], plain: Plain, normalize: bool = False) -> Tensor:
    """The rows of the tokens that are read, of the product of (I + A) over layers."""
    identity = torch.eye(added[0].shape[-1], dtype=added[0].dtype)
    product = identity
    for one in added:
        step = identity + one
        if normalize:
            step = step / step.sum(-1, keepdim=True)
        product = step @ product
    if not (plain.keeps_identity or normalize):
        product = product - identity
    return sum(weight * product[at] for at, weight in plain.read.items())


def _share_evidence(plain: Plain) -> Tensor:
    """`whence` with plain gradients, token by token."""
    tokens = plain.maps[0].shape[-1]
    content = plain.content or plain.units
    at = (slice(None), 0) if plain.tokens_first else (0,)
    pairs = list(zip(plain.hidden, plain.gradients(plain.hidden), strict=True))
    pairs = [(x[at].detach(), g[at]) for x, g in pairs]
    content = [i for i in content if any(bool(g[i].any()) for _, g in pairs)]
    held = [sum(max(float(x[i] @ g[i]), 0.0) for x, g in pairs) for i in range(tokens)]
    mean = sum(one.mean(0) for one in plain.join_heads(plain.maps))
    sharing = 2.0 if plain.is_image and not plain.is_signal else 0.25
    scores = torch.zeros(tokens, dtype=torch.float64)
    for i in range(tokens):
        own = others = held[i] ** 0.5
        bonds = {j: float(mean[i, j] + mean[j, i]) for j in content}
        if i in content and sum(bonds.values()):
            others = sum(b * held[j] ** 0.5 for j, b in bonds.items()) / sum(bonds.values())
        score = (own + sharing * others) / (1 + sharing)
        scores[i] = score if plain.is_image else score**2
    return scores
