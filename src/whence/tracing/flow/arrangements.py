"""Arrangements: which leading dimensions of an attention map are samples, groups and heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from whence._util.torch_internals import output_metadata
from whence.tracing.flow.places import TokenIndex, TokenPlace
from whence.tracing.ops.attention import Arrangement, AttentionSite


def find_arrangement(
    positions: Tensor, batch: int, count: int
) -> tuple[Arrangement, Tensor] | None:
    """How leading dimensions are laid out, given the position of each query in the stream.

    Args:
        positions: (leading dimensions, queries): sample and token as one number, or -1.
        batch: Number of samples.
        count: Number of tokens of a sample.

    Returns:
        The arrangement, and positions as (batch, groups, queries); None if they do not fit.
    """
    factors, heads = list[int](), list[int]()
    for length in positions.shape[:-1]:
        dim = len(factors)
        rest = positions.reshape(*factors, length, -1)
        inner = _count_alike(rest, factors, length, inner=True)
        outer = _count_alike(rest, factors, length, inner=False)
        if inner >= outer and inner > 1:
            heads.append(dim + 1 if inner < length else dim)
            factors += [length // inner, inner] if inner < length else [length]
        elif outer > 1:
            heads.append(dim)
            factors += [outer, length // outer]
        else:
            factors.append(length)
    samples = math.prod(f for n, f in enumerate(factors) if n not in heads)
    if samples % batch:
        return None
    owners = torch.arange(batch, device=positions.device).reshape(-1, 1, 1)
    for samples_first in (True, False):
        dims = positions.dim() - 1
        arrangement = Arrangement(dims, tuple(factors), tuple(heads), batch, samples_first)
        split = arrangement.split(positions[..., None])
        split = (split if arrangement.groups > 1 else split[:, None])[:, :, 0, :, 0]
        if bool(((split < 0) | (split // count == owners)).all()):
            return arrangement, split
    return None


def _count_alike(values: Tensor, before: list[int], length: int, *, inner: bool) -> int:
    """How many neighbours along a dimension, inner or outer ones, are all alike at most."""
    for count in range(length, 1, -1):
        if length % count == 0:
            sizes = (length // count, count) if inner else (count, length // count)
            split = values.reshape(*before, *sizes, -1)
            dim = len(before) + int(inner)
            if bool((split == split.narrow(dim, 0, 1)).all()):
                return count
    return 1


def place_rows(
    edge: GradientEdge, site: AttentionSite, arrangement: Arrangement, rows: int, last: bool
) -> TokenPlace:
    """The place of values whose rows are those of groups: queries or keys of a site.

    Args:
        edge: The place.
        site: The site.
        arrangement: How its leading dimensions are laid out.
        rows: Number of rows of a group.
        last: Whether they come last.
    """
    like = output_metadata(edge.node)[edge.output_nr]
    leading = site.weights.shape[:-2]
    batch, groups = arrangement.batch, arrangement.groups
    numbers = torch.arange(batch * groups, device=like.device)
    if not arrangement.samples_first:
        numbers = numbers.reshape(batch, groups).T.reshape(-1)
    rest = arrangement.rest
    sizes = [f if n in rest else 1 for n, f in enumerate(arrangement.factors)]
    whole = numbers.reshape(sizes).expand(arrangement.factors).reshape(leading)
    own = like.shape[:-2]
    if len(own) == len(leading):
        for dim, (length, given) in enumerate(zip(leading, own, strict=True)):
            if given != length:  # heads share their values
                whole = whole.narrow(dim, 0, 1)
    whole = whole[..., None, None]
    line = torch.arange(rows, device=like.device)
    line = line if last else line[:, None]
    samples = whole // groups
    tokens = (whole % groups) * rows + line
    return TokenPlace(edge, TokenIndex(samples, tokens, batch, groups * rows))
