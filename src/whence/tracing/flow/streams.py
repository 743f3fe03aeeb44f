"""Streams: how the tokens of a residual stream lie in its value, and which queries they become.

The sum with the skip connection of a layer may have any layout: tokens before or after samples,
rows and columns of an image, windows one by one, channels first. Marks of each index along each
dimension go backward from the sum to the attention's output, whose rows are queries, and to what
enters the block. A dimension of which a query has one index alone is one of tokens or samples; one
of which it has all is one of features.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence._util.torch_internals import output_metadata
from whence.errors import WhenceError
from whence.tracing.flow.arrangements import find_arrangement, place_rows
from whence.tracing.flow.places import TokenIndex, TokenPlace
from whence.tracing.graph import AttentionLayer
from whence.tracing.mark_walk import MarkWalk
from whence.tracing.marks import compact, mark_any
from whence.tracing.ops.attention import Arrangement, AttentionSite
from whence.tracing.trace import Trace


@dataclass(frozen=True)
class Stream:
    """The tokens of the residual stream around a layer.

    Attributes:
        leaving: Where the sum with the skip connection is; the attention's output without one.
        entering: Where the block's input is; None if its tokens are not known there.
        queries: (n, 4), which query each token becomes: sample, token, query and the weight 1.
        arrangements: For each site, how its leading dimensions are laid out.
    """

    leaving: TokenPlace
    entering: TokenPlace | None
    queries: Tensor
    arrangements: list[Arrangement]

    @property
    def count(self) -> int:
        """Number of tokens of a sample."""
        return self.leaving.count


class _Indices(NamedTuple):
    """Indices of a stream along one dimension that elements of another place depend on.

    Attributes:
        indices: Of each element, where it is one alone.
        several: Whether it depends on several.
        present: Whether it depends on any.
    """

    indices: Tensor
    several: Tensor
    present: Tensor


@dataclass(frozen=True)
class _Numbering:
    """How samples and tokens are numbered along the dimensions of a stream.

    Attributes:
        batch: Number of samples.
        sizes: How many tokens of a sample there are along each dimension.
        of_samples: The dimension that samples lie along.
        samples_first: Whether they lie there before tokens, if these do, too.
    """

    batch: int
    sizes: dict[int, int]
    of_samples: int | None
    samples_first: bool

    @classmethod
    def list_possible(
        cls, shape: torch.Size, of_tokens: list[int], batch: int
    ) -> Iterator[_Numbering]:
        """The numberings that a stream of some shape may have."""
        if batch == 1:
            yield cls(batch, {dim: shape[dim] for dim in of_tokens}, None, True)
        for of_samples in of_tokens if batch > 1 else ():
            sizes = {dim: shape[dim] // (batch if dim == of_samples else 1) for dim in of_tokens}
            if shape[of_samples] % batch == 0:
                yield cls(batch, sizes, of_samples, True)
                if sizes[of_samples] > 1:
                    yield cls(batch, sizes, of_samples, False)

    @property
    def count(self) -> int:
        """Number of tokens of a sample."""
        return math.prod(self.sizes.values())

    def __call__(self, indices: dict[int, Tensor], origin: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and tokens, given indices along each dimension, and zeros in their shape."""
        samples = tokens = origin
        for dim, size in self.sizes.items():
            along = indices[dim]
            if dim == self.of_samples:
                batch = self.batch
                samples = samples + (along // size if self.samples_first else along % batch)
                along = along if self.samples_first else along // batch
            tokens = tokens * size + along % size
        return samples, tokens


def find_streams(
    trace: Trace, walk: MarkWalk, layer: AttentionLayer, attention: Collection[Node]
) -> Iterator[Stream]:
    """The layouts that a layer's stream may have; which dimension is samples is yet to be shown.

    Args:
        trace: The recorded forward pass.
        walk: Carries marks.
        layer: The layer.
        attention: The nodes of all products of maps and values.
    """
    if layer.addition is None:
        yield from _find_without_skip(trace, layer)
        return
    top = trace.entries[layer.addition.index].output
    shape = _shape_at(top)
    products = [trace.entries[site.product.index].output for site in layer.sites]
    entering = [] if layer.skip is None else [layer.skip.input_edge]
    along = {
        dim: [
            *_read_indices(walk, top, dim, products, attention, layer.sites),
            *_read_indices(walk, top, dim, entering, attention),
        ]
        for dim, length in enumerate(shape)
        if length > 1
    }
    of_tokens = []
    for dim, read in along.items():
        at = [one for one in read[: len(products)] if one is not None]
        if len(at) < len(products):
            return
        several = {flag for one in at for flag in one.several[one.present].tolist()}
        if several == {False}:
            of_tokens.append(dim)
        elif several != {True}:
            return
    if layer.query_count > 1 and math.prod(shape[dim] for dim in of_tokens) <= trace.batch:
        raise WhenceError(
            f"The attention in {layer.where} is among features and not among tokens, as "
            f"cross-covariance attention has it, so that its maps tell of no tokens. Methods at "
            f"the input, such as 'input_x_gradient', work."
        )
    yield from _arrange(trace.batch, top, layer, of_tokens, along)


def _shape_at(edge: GradientEdge) -> torch.Size:
    return torch.Size(output_metadata(edge.node)[edge.output_nr].shape)


def _read_indices(
    walk: MarkWalk,
    top: GradientEdge,
    dim: int,
    places: list[GradientEdge],
    attention: Collection[Node],
    sites: Sequence[AttentionSite] = (),
) -> list[_Indices | None]:
    """Indices along a dimension: of the queries of each site, or of elements of other places."""
    like = output_metadata(top.node)[top.output_nr]
    length = like.shape[dim]
    bits = (length - 1).bit_length()
    powers = torch.arange(bits, device=like.device)
    has_bit = (torch.arange(length, device=like.device) >> powers[:, None]) & 1
    seed = torch.cat([has_bit, 1 - has_bit]).to(like.dtype)
    inner = [1] * (len(like.shape) - dim - 1)
    seed = seed.reshape(2 * bits, *[1] * dim, length, *inner).expand(-1, *like.shape)
    blocked = set(attention) - {edge.node for edge in places}
    with torch.inference_mode(False), torch.no_grad():
        found = walk.run(top, seed, places, ends=True, blocked=blocked, branches=bool(sites))
    read: list[_Indices | None] = []
    for number, marks in enumerate(found):
        if marks is None:
            read.append(None)
            continue
        if sites:  # rows are queries
            width = -2 if sites[number].keys_first else -1
            marks = mark_any(marks, width).squeeze(width)
        shape = marks.shape
        marks = compact(marks) > 0
        marks = marks.expand(shape) if sites else marks
        ones, zeros = marks[:bits], marks[bits:]
        weights = (2**powers).reshape(-1, *[1] * (marks.dim() - 1))
        indices = (ones * weights).sum(0)
        read.append(_Indices(indices, (ones & zeros).any(0), (ones | zeros).any(0)))
    return read


def _arrange(
    batch: int,
    top: GradientEdge,
    layer: AttentionLayer,
    of_tokens: list[int],
    along: dict[int, list[_Indices | None]],
) -> Iterator[Stream]:
    """Streams for each dimension that may hold the samples."""
    shape = _shape_at(top)
    for numbering in _Numbering.list_possible(shape, of_tokens, batch):
        count = numbering.count
        device = output_metadata(top.node)[top.output_nr].device
        lines = {
            d: torch.arange(shape[d], device=device).reshape(
                [-1 if e == d else 1 for e in range(len(shape))]
            )
            for d in of_tokens
        }
        origin = torch.zeros([1] * len(shape), dtype=torch.long, device=device)
        leaving = TokenPlace(top, TokenIndex(*numbering(lines, origin), batch, count))
        relations, arrangements = [], []
        for at, site in enumerate(layer.sites):
            read = {dim: along[dim][at] for dim in of_tokens}
            known = {d: one for d, one in read.items() if one is not None}
            queries = (*site.weights.shape[:-2], site.query_count)
            empty = torch.zeros(queries, dtype=torch.long, device=device)
            present = torch.ones(queries, dtype=torch.bool, device=device)
            for one in known.values():
                present = present & one.present
            samples, tokens = numbering({d: one.indices for d, one in known.items()}, empty)
            found = find_arrangement(
                torch.where(present, samples * count + tokens, -1), batch, count
            )
            if found is None:
                break
            arrangement, position = found
            arrangements.append(arrangement)
            relations.append(_relate_queries(position, count))
        if len(arrangements) < len(layer.sites) or any(
            not torch.equal(one, relations[0]) for one in relations[1:]
        ):
            continue
        entering = _find_entering(layer, numbering, along, batch)
        yield Stream(leaving, entering, relations[0], arrangements)


def _relate_queries(positions: Tensor, count: int) -> Tensor:
    """Which query each token becomes, given positions as (batch, groups, queries)."""
    flat = positions.flatten(1).cpu()
    sample, query = (flat >= 0).nonzero().unbind(1)
    token = flat[sample, query] % count
    return torch.stack([sample, token, query, torch.ones_like(sample)], 1).double()


def _find_entering(
    layer: AttentionLayer,
    numbering: _Numbering,
    along: dict[int, list[_Indices | None]],
    batch: int,
) -> TokenPlace | None:
    """The tokens of what enters the block, if each of its elements belongs to one."""
    if layer.skip is None:
        return None
    read = {dim: along[dim][-1] for dim in numbering.sizes}
    known = {dim: one for dim, one in read.items() if one is not None}
    is_clear = not any(bool(one.several.any()) for one in known.values())
    if not known or len(known) < len(read) or not is_clear:
        return None
    present, *others = (one.present for one in known.values())
    for one in others:
        present = present & one
    indices = {dim: one.indices for dim, one in known.items()}
    samples, tokens = numbering(indices, torch.zeros_like(present, dtype=torch.long))
    index = TokenIndex(samples, torch.where(present, tokens, -1), batch, numbering.count)
    return TokenPlace(layer.skip.input_edge, index)


def _find_without_skip(trace: Trace, layer: AttentionLayer) -> Iterator[Stream]:
    """The stream of an attention without a skip connection: its queries."""
    batch, arrangements, places = trace.batch, list[Arrangement](), list[TokenPlace]()
    for site in layer.sites:
        if site.problem:
            return
        leading = tuple(site.weights.shape[:-2])
        if len(leading) == 2:
            arrangement = Arrangement(2, leading, (0,) if site.heads_first else (1,), batch)
        else:
            per = leading[0] // batch
            factors = (per, batch) if site.heads_first else (batch, per)
            arrangement = Arrangement(1, factors, (0,) if site.heads_first else (1,), batch)
        arrangements.append(arrangement)
        edge = trace.entries[site.product.index].output
        places.append(place_rows(edge, site, arrangement, site.query_count, site.keys_first))
    every = torch.arange(layer.query_count).repeat(batch)
    sample = torch.arange(batch).repeat_interleave(layer.query_count)
    queries = torch.stack([sample, every, every, torch.ones_like(every)], 1).double()
    yield Stream(places[0], None, queries, arrangements)
