"""Readings of a trace: gradient, relevance and attention at several places, or site by site."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import functional as F

from whence.tracing.ops.attention import Arrangement, AttentionSite
from whence.tracing.ops.base import BackwardRules
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.products import MatMul
from whence.tracing.ops.propagation import Propagation
from whence.tracing.trace import Trace


class MapReadings(NamedTuple):
    """What there is at the attention maps of a site, or of some of its queries.

    What a method does not need is empty.

    Attributes:
        attention: (batch, heads, queries, keys).
        gradient: (targets, batch, heads, queries, keys).
        relevance: As the gradient.
        first_query: The number of the first of these queries.
    """

    attention: Tensor
    gradient: Tensor
    relevance: Tensor
    first_query: int = 0


_KINDS = ("attention", "gradient", "relevance")
_REDUCE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": torch.sum,
    "sum": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
}
_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": Tensor.add_,
    "sum": Tensor.add_,
    "max": torch.maximum,
    "min": torch.minimum,
}

HeadFusion = Literal["mean", "sum", "max", "min"]


class MapChunks(Protocol):
    """Gives the readings of one site, some queries at a time."""

    def __call__(self, *, every_key: bool = False) -> Iterator[MapReadings]:
        """Readings of some queries after others.

        Args:
            every_key: Whether to read also at keys that these queries do not attend to, at the end.
        """

    def find_unmapped(self) -> UnmappedSite | None:
        """The site without its maps, where they are not in memory and need not be."""


class UnmappedSite(NamedTuple):
    """An attention site whose maps are not made: what they are made of, and read with.

    The gradient at its maps is that at its output times the values, transposed.

    Attributes:
        attention: The attention.
        gradient: (targets, batch, heads, queries, width), at its output.
    """

    attention: ChunkedAttention
    gradient: Tensor

    @property
    def values(self) -> Tensor:
        """(batch, heads, keys, width)."""
        return self.attention.values

    def average_seen(self, values: Tensor) -> Tensor | None:
        """For each query, the mean over the keys that it sees; None if that needs maps."""
        return self.attention.average_seen(values)

    def read_back(self, rows: Tensor) -> Tensor:
        """The transposed maps times rows, (targets, batch, heads, queries, width)."""
        return self.attention.read_back(rows)


class _MapsInMemory(NamedTuple):
    """Readings that are in memory, as chunks."""

    parts: tuple[MapReadings, ...]

    def __call__(self, *, every_key: bool = False) -> Iterator[MapReadings]:  # noqa: ARG002
        """All of them: each has every key."""
        return iter(self.parts)

    def find_unmapped(self) -> UnmappedSite | None:
        """None: the maps are in memory."""
        return None


def hand_over(*parts: MapReadings) -> MapChunks:
    """Readings that are in memory, as chunks."""
    return _MapsInMemory(parts)


def fuse_chunks(
    chunks: Iterator[MapReadings], weigh: Callable[[MapReadings], Tensor], heads: HeadFusion
) -> Tensor:
    """One matrix (..., queries, keys) of all heads of a layer."""
    fused: dict[int, Tensor] = {}
    count = 0
    for readings in chunks:
        maps, first = weigh(readings), readings.first_query
        count += maps.shape[-3] if first == 0 else 0
        part = _REDUCE[heads](maps, -3)
        fused[first] = part if first not in fused else _COMBINE[heads](fused[first], part)
        del maps, part, readings
    if not fused:
        raise ValueError("A layer has at least one head.")
    widest = max(part.shape[-1] for part in fused.values())
    rows = [_widen(fused.pop(first), widest) for first in sorted(fused)]
    whole = rows[0] if len(rows) == 1 else torch.cat(rows, -2)
    return whole.div_(count) if heads == "mean" else whole


def sum_chunks(chunks: Iterator[MapReadings], weigh: Callable[[MapReadings], Tensor]) -> Tensor:
    """What all heads and queries of a layer add up to, (..., keys), without a matrix of them.

    Raises:
        ValueError: There is no chunk.
    """
    total: Tensor | None = None
    for readings in chunks:
        maps = weigh(readings)
        wide = torch.promote_types(maps.dtype, torch.float32)  # totals would be rounded each time
        part = maps.sum((-3, -2)).to(wide)
        del maps, readings
        keys = part.shape[-1] if total is None else max(part.shape[-1], total.shape[-1])
        part = _widen(part, keys)
        total = part if total is None else _widen(total, keys).add_(part)
    if total is None:
        raise ValueError("A layer has at least one head.")
    return total


def _widen(part: Tensor, keys: int) -> Tensor:
    """Values (..., some keys) with zeros for the keys after these."""
    return part if part.shape[-1] == keys else F.pad(part, (0, keys - part.shape[-1]))


class PlaceReadings:
    """Values at leaves and at rows of tokens, kept as a backward pass meets them.

    Args:
        inputs: Leaves of the graph, by what is read there.
        tokens: Values of the forward pass whose rows are tokens, with their places in the graph.

    Attributes:
        edges: All places, in their order.
    """

    def __init__(
        self,
        inputs: Mapping[str, Sequence[Tensor]],
        tokens: Mapping[str, Sequence[tuple[Tensor, GradientEdge]]],
    ) -> None:
        self._inputs, self._tokens = inputs, tokens
        self._read: dict[int, Tensor] = {}
        leaves = [leaf for values in inputs.values() for leaf in values]
        of_tokens = [edge for values in tokens.values() for _, edge in values]
        self.edges: list[Tensor | GradientEdge] = [*leaves, *of_tokens]

    @property
    def kinds(self) -> set[str]:
        """What is read."""
        return {*self._inputs, *self._tokens}

    def find_order(self, trace: Trace) -> None:
        """Find whether samples come first, while the trace can still be read."""
        for values in self._tokens.values():
            for value, edge in values:
                trace.split_tokens(value, edge, value.shape)

    def keep(self, number: int, value: Tensor) -> None:
        """Keep the value of a place."""
        self._read[number] = value

    def finish(self, trace: Trace) -> dict[str, list[Tensor]]:
        """The values at the leaves as they are, and those of tokens by tokens."""
        read = iter([self._read[number] for number in range(len(self.edges))])
        found = {kind: [next(read) for _ in leaves] for kind, leaves in self._inputs.items()}
        for kind, values in self._tokens.items():
            found[kind] = [trace.split_tokens(next(read), e, v.shape) for v, e in values]
        return found


def iterate_sites(
    trace: Trace,
    sites: Sequence[AttentionSite],
    kinds: Collection[str],
    targets: Mapping[str, Tensor],
    rules: Mapping[str, BackwardRules | None],
    *,
    release: bool,
    start: GradientEdge | None = None,
    others: Sequence[Tensor | GradientEdge] = (),
    keep: Callable[[int, list[Tensor]], None] | None = None,
) -> Iterator[MapChunks]:
    """The attention maps from the last to the first, with the kinds of values read there.

    Values begin at the logits, or at another place of the graph.

    Args:
        trace: The recorded forward pass.
        sites: The attention sites.
        kinds: What is read of them.
        targets: For gradient and relevance, as for `Trace.make_seeds`.
        rules: For each of both, how values pass operations.
        release: Whether to free all that has been passed.
        start: A place to begin at, in place of the logits.
        others: More places to be read in the same backward pass.
        keep: Gets the number of each of them, with its values.
    """
    sites = sites[::-1]
    wanted = [kind for kind in rules if kind in kinds]
    values = trace.iterate_backward(
        [targets[kind] for kind in wanted],
        [*(site.place for site in sites), *others] if wanted else (),
        [rules[kind] for kind in wanted],
        release=release,
        start=start,
    )
    waiting: dict[int, list[Tensor]] = {}
    # Of attentions side by side, the backward pass may meet the last one not as the first. What
    # they are read from then has to outlast their release.
    products = {number: site.product for number, site in enumerate(sites)}
    for number, site in enumerate(sites):
        while wanted and number not in waiting:
            met, read = next(values)
            if met >= len(sites):
                if keep is not None:
                    keep(met - len(sites), read)
                continue
            waiting[met] = read
            if met != number:
                products[met] = copy.copy(products[met])
        found = dict(zip(wanted, waiting.pop(number, ()), strict=True))
        product = products.pop(number)
        chunks: MapChunks
        if isinstance(product, ChunkedAttention):
            chunks = _MapsInChunks(product, kinds, found, rules, site.arrangement)
        else:
            found = {kind: site.split_heads(one, trace.batch) for kind, one in found.items()}
            if "attention" in kinds:
                found["attention"] = site.split_heads(site.weights.detach(), trace.batch)
            chunks = hand_over(make_readings(found))
        found = {}
        yield chunks
        del chunks, product
        if release:
            site.release()
    for met, read in values if others else ():
        if keep is not None:
            keep(met - len(sites), read)


def make_readings(found: Mapping[str, Tensor], first_query: int = 0) -> MapReadings:
    """Readings of some kinds; the others are empty."""
    attention, gradient, relevance = (found.get(kind, torch.empty(0)) for kind in _KINDS)
    return MapReadings(attention, gradient, relevance, first_query)


class _MapsInChunks(NamedTuple):
    """Readings at maps that were not kept, given what was read at the attention's output."""

    attention: ChunkedAttention
    kinds: Collection[str]
    at_output: Mapping[str, Tensor]
    rules: Mapping[str, BackwardRules | None]
    arrangement: Arrangement | None

    def __call__(self, *, every_key: bool = False) -> Iterator[MapReadings]:
        """Readings of some queries after others; see `MapChunks`."""
        attention = self.attention.fetch()
        classes = max((len(values) for values in self.at_output.values()), default=1)
        # While maps are in memory, values that have to pass them do so.
        passing = {} if every_key else self._begin_to_propagate(attention)
        for rows, part in attention.split_queries(classes, every_key=every_key):
            operations = part.split_operations()
            product = operations[-1]
            found = {"attention": product.a} if "attention" in self.kinds else {}
            for kind, values in self.at_output.items():
                rule_set = self.rules[kind]
                if kind in passing:
                    seen = attention.find_seen_keys(rows.stop)
                    read = passing[kind].add(rows, seen, operations, reads_maps=True)
                else:
                    product.wanted = (True, False)
                    read = [_read_at_map(product, one[..., rows, :], rule_set) for one in values]
                found[kind] = read[0][None] if len(read) == 1 else torch.stack(read)
                del read
            del operations
            if self.arrangement is not None:
                found = {kind: self.arrangement.split(values) for kind, values in found.items()}
            readings = make_readings(found, rows.start)
            del found, product, part
            yield readings
            del readings
        for propagation in passing.values():
            attention.keep(propagation)

    def _begin_to_propagate(self, attention: ChunkedAttention) -> dict[str, Propagation]:
        """For the kinds of values that pass the attention by its maps, what adds them up."""
        by_maps = {
            kind: rule_set
            for kind, rule_set in self.rules.items()
            if rule_set is not None and rule_set.attention_factors is None
        }
        return {
            kind: attention.begin_to_propagate(values, by_maps[kind].propagate)
            for kind, values in self.at_output.items()
            if kind in by_maps
        }

    def find_unmapped(self) -> UnmappedSite | None:
        """The site without its maps, if none are made and gradients are those of torch's own."""
        rules = self.rules.get("gradient")
        plain = rules is None or rules.attention_factors == (0.0, 0.0, 1.0)
        if self.arrangement is not None or "gradient" not in self.at_output or not plain:
            return None
        if self.attention.has_maps:
            return None
        return UnmappedSite(self.attention.fetch(), self.at_output["gradient"])


def _read_at_map(product: MatMul, value: Tensor, rules: BackwardRules | None) -> Tensor:
    values = product.gradient(value) if rules is None else rules.propagate(product, value)
    if values[0] is None:
        raise RuntimeError("A rule gave no value for an attention map, which is wanted.")
    return values[0]
