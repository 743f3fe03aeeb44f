"""The places of a trace where evidence is read, and what is read there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from whence.errors import WhenceError
from whence.rules import RuleSet
from whence.tracing.graph.blocks import Block
from whence.tracing.ops.attention import Attention, of_heads
from whence.tracing.ops.operations import MatMul
from whence.tracing.trace import Trace


class Layer(NamedTuple):
    """What there is at the attention maps of a layer, or of some of its heads.

    What a method does not need is empty.

    Attributes:
        attention: (batch, heads, queries, keys).
        gradient: (classes, batch, heads, queries, keys).
        relevance: As the gradient.
    """

    attention: Tensor
    gradient: Tensor
    relevance: Tensor


class Places:
    """The places of a trace where evidence is read."""

    def __init__(self, traced: Trace, blocks: list[Block], first_layer: int = 0) -> None:
        self._traced = traced
        self._blocks = blocks
        # A layer that does not exist is for the method to refuse.
        exists = abs(first_layer) <= len(traced.sites) - (first_layer >= 0)
        self._sites = traced.sites[first_layer if exists else 0 :]

    @property
    def input(self) -> Tensor:
        """The one tensor in which the model's dependence on its input begins."""
        if len(self._traced.inputs) != 1:
            raise WhenceError(
                f"The model reads its input in {len(self._traced.inputs)} places, so that it has "
                f"no single gradient or relevance."
            )
        return self._traced.inputs[0]

    def _hidden(self) -> list[tuple[Tensor, GradientEdge]]:
        last = self._blocks[-1].leaving
        entering = [(block.entering, block.entering_at) for block in self._blocks]
        return [*entering, (last.output, self._traced.steps[last.index].output)]

    def _attended(self) -> list[tuple[Tensor, GradientEdge]]:
        return [(block.attended, block.attended_at) for block in self._blocks]

    def descend(
        self,
        kinds: Collection[str],
        classes: Tensor,
        gradients: RuleSet | None,
        rules: RuleSet,
        release: bool,
    ) -> Iterator[Callable[[], Iterator[Layer]]]:
        """The attention maps from the last down to the first, with readings of them."""
        sites = self._sites[::-1]
        how = {"gradient": gradients, "relevance": rules}
        wanted = [kind for kind in how if kind in kinds]
        readings = self._traced.descend(
            classes,
            [site.place for site in sites] if wanted else (),
            [how[kind] for kind in wanted],
            release=release,
        )
        waiting: dict[int, list[Tensor]] = {}
        # Of attentions side by side, the way down may meet the last one not as the first. What they
        # are read from then has to outlast their release.
        products = {number: site.product for number, site in enumerate(sites)}
        empty = torch.empty(0)
        for number, site in enumerate(sites):
            while wanted and number not in waiting:
                met, found = next(readings)
                waiting[met] = found
                if met != number:
                    products[met] = copy.copy(products[met])
            read = dict(zip(wanted, waiting.pop(number, ()), strict=True))
            product = products.pop(number)
            if isinstance(product, Attention):
                layer = partial(_in_heads, product, kinds, read, how)
            else:
                read = {kind: site.by_head(one, self._traced.batch) for kind, one in read.items()}
                if "attention" in kinds:
                    read["attention"] = site.by_head(site.weights.detach(), self._traced.batch)
                layer = partial(iter, (Layer(*(read.get(kind, empty) for kind in Layer._fields)),))
            read = {}
            yield layer
            del layer, product
            if release:
                site.release()

    def hidden_values(self) -> list[Tensor]:
        """What enters each block, and what leaves the last, (batch, tokens, width)."""
        return [self._traced.by_token(value, at, value.shape) for value, at in self._hidden()]

    def attended_values(self) -> list[Tensor]:
        """What the values of each attention are computed from, (batch, tokens, width)."""
        return [self._traced.by_token(value, at, value.shape) for value, at in self._attended()]

    def read(
        self, what: str, kinds: Collection[str], classes: Tensor, rules: RuleSet | None
    ) -> dict[str, list[Tensor]]:
        """Gradient or relevance wherever it is asked for, in one backward pass."""
        names = (what, f"input_{what}", f"hidden_{what}", f"attended_{what}")
        found: dict[str, list[Tensor]] = {name: [] for name in names}
        places: dict[str, list[tuple[Tensor, Tensor | GradientEdge]]] = {}
        if what in kinds:
            places[what] = [(site.weights, site.weights) for site in self._sites]
        if f"input_{what}" in kinds:
            places[f"input_{what}"] = [(self.input, self.input)]
        if f"hidden_{what}" in kinds:
            places[f"hidden_{what}"] = list(self._hidden())
        if f"attended_{what}" in kinds:
            places[f"attended_{what}"] = list(self._attended())
        flat = [(name, value, at) for name, group in places.items() for value, at in group]
        if not flat:
            return found
        readings = self._traced.read(classes, [at for _, _, at in flat], rules)
        sites = iter(self._sites)
        for (name, value, at), read in zip(flat, readings, strict=True):
            if name == what:
                read = next(sites).by_head(read, self._traced.batch)
            elif isinstance(at, GradientEdge):
                read = self._traced.by_token(read, at, value.shape)
            found[name].append(read)
        # Layers that were not read are empty, so that layers keep their numbers.
        missing = len(self._traced.sites) - len(found[what]) if found[what] else 0
        found[what] = [classes.new_zeros(0) for _ in range(missing)] + found[what]
        return found


def _in_heads(
    attention: Attention,
    kinds: Collection[str],
    readings: Mapping[str, Tensor],
    how: Mapping[str, RuleSet | None],
) -> Iterator[Layer]:
    """What there is at maps that were not kept, given what was read behind them."""
    empty = torch.empty(0)
    for heads in attention.parts():
        product = attention.spelled_out(heads)[-1]
        product.wanted = (True, False)
        found = {"attention": product.a} if "attention" in kinds else {}
        for kind, behind in readings.items():
            found[kind] = torch.stack(
                [_at_map(product, of_heads(one, heads), how[kind]) for one in behind]
            )
        yield Layer(*(found.pop(kind, empty) for kind in Layer._fields))


def _at_map(product: MatMul, behind: Tensor, rules: RuleSet | None) -> Tensor:
    read = product.gradient(behind) if rules is None else rules.propagate(product, behind)
    assert read[0] is not None
    return read[0]
