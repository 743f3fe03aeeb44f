"""Formulas of methods in plain loops, over what a model itself returns for one sample."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
        is_image: Whether tokens are patches; words, or moments of a signal, are not.
        tokens_first: Whether hidden states are (tokens, 1, width).
        side_by_side: How many successive maps are heads of one layer.
        keeps_identity: Whether the skip's share of a token that is read counts.
        centered: The scalar less the mean of those that compete with it, if any do.
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
    keeps_identity: bool = True
    tokens_first: bool = False
    side_by_side: int = 1
    centered: Tensor | None = None

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
        return _find_evidence(plain)[plain.units]
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


def _find_evidence(plain: Plain) -> Tensor:
    """`whence` with plain gradients, token by token."""
    tokens = plain.maps[0].shape[-1]
    at = (slice(None), 0) if plain.tokens_first else (0,)
    target = plain.logit if plain.centered is None else plain.centered
    found = torch.autograd.grad(target, [*plain.maps, *plain.hidden], retain_graph=True)
    gradients, at_hidden = found[: len(plain.maps)], found[len(plain.maps) :]
    maps = plain.join_heads(plain.maps)
    read = sum(sum_reads(*one) for one in zip(maps, plain.join_heads(gradients), strict=True))
    pairs = [(x[at].detach(), g[at]) for x, g in zip(plain.hidden, at_hidden, strict=True)]
    held = torch.stack([(x * g).sum(-1) for x, g in pairs])
    if not plain.is_image:
        return held[: max(1, len(held) // 2)].mean(0) + read
    content = [i for i in plain.content or plain.units if any(bool(g[i].any()) for _, g in pairs)]
    mask = torch.zeros(tokens, dtype=torch.bool)
    mask[content] = True
    return link_evidence(held.sum(0) + 4 * read, sum(one.sum(0) for one in maps), mask)


def sum_reads(maps: Tensor, gradients: Tensor) -> Tensor:
    """What all queries read of each key, against the mean of those that they see: (keys,).

    Both arguments are (..., queries, keys).
    """
    rows, at_rows = (one.flatten(0, -2).double() for one in (maps, gradients))
    seen = rows > 1e-30
    means = torch.where(seen, at_rows, 0).sum(-1) / seen.sum(-1).clamp(min=1)
    return (rows * (at_rows - means[:, None])).sum(0)


def link_evidence(evidence: Tensor, attention: Tensor, mask: Tensor) -> Tensor:
    """The root of evidence, with its sign, times that of the tokens that attention links to it."""
    scores = torch.zeros(len(evidence), dtype=torch.float64)
    for i, own in enumerate(evidence.tolist()):
        near = max(own, 0.0) ** 0.5
        links = {j: float(attention[i, j] + attention[j, i]) for j in mask.nonzero()[:, 0].tolist()}
        if mask[i] and sum(links.values()):
            near = sum(b * max(float(evidence[j]), 0.0) ** 0.5 for j, b in links.items())
            near /= sum(links.values())
        scores[i] = (1 if own > 0 else -1) * abs(own) ** 0.5 * near
    return scores


def center(output: Any) -> Any:
    """What a model returns, with each logit less the mean of those of its row."""
    if isinstance(output, Tensor):
        return output - output.mean(-1, keepdim=True)
    if isinstance(getattr(output, "logits", None), Tensor):
        output = copy.copy(output)
        output.logits = center(output.logits)
    return output
