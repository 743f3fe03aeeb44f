"""Evidence: what a method may ask for of a recorded forward pass, computed when asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from whence.errors import UndeclaredEvidenceError
from whence.evidence.explained import ExplainedTargets
from whence.evidence.flow_reads import carry_reads, read_streams
from whence.evidence.forwards import Forwards
from whence.evidence.kinds import AT_MAPS
from whence.evidence.layers import (
    find_blocks_of_stream,
    iterate_layers,
    join_heads,
    join_sites,
    list_entering,
    list_hidden_states,
    list_value_inputs,
    read_last_layer,
    sum_keys,
)
from whence.layout import compute_pooling
from whence.rules import RuleSet
from whence.tracing.graph import AttentionLayer, Block, find_blocks
from whence.tracing.readings import (
    HeadFusion,
    MapChunks,
    MapReadings,
    PlaceReadings,
    UnmappedSite,
    fuse_chunks,
    iterate_sites,
    make_readings,
    sum_chunks,
)
from whence.tracing.trace import Trace


@dataclass(eq=False)
class Evidence(ExplainedTargets):
    """What a trace says of some targets. Lists are over layers or blocks, nearest the input first.

    Values that belong to a target (gradients, relevance, pooling) have the explained targets as
    first dimension; values of the forward pass do not:

    ==================== =========================================================================
    attention            (batch, heads, queries, keys) for each layer
    gradient, relevance  (targets, batch, heads, queries, keys) for each layer
    inputs               (batch, channels, height, width) or (batch, tokens, width) for each place
                         where the model reads its input, nearly always one
    input_gradient, ...  (targets, ...) and the shape of the inputs
    hidden, value_input  (batch, tokens, width) for each block; hidden has one more, which with
                         pooling by attention is what that one reads
    hidden_gradient, ... (targets, batch, tokens, width) for each block
    ==================== =========================================================================

    Attributes:
        needs: Which of `KINDS` the method declared. One backward pass gives all declared gradients,
            another all relevances.
        rules: The rules for relevance.
        gradient_rules: How gradients are read; None for plain ones.
        padding: (batch, units), true where a unit is padding; None if there is none.
        special: (batch, units), true where a token belongs to no word; None if that is not known.
        class_specific: Whether rows are pooled as each target weighs them, or as the predicted
            class does.
        first_layer: Maps of earlier layers are not read; negative counts from the end.
        streamed: Whether maps are read one layer at a time, by `fuse_heads` alone.
        release: Whether to free what has been read then, so that the trace is of no more use.
        make_forwards: Makes what runs the model again.
        details: What a method tells beside its scores, as JSON: for each sample and target.
        recorded_anew: The evidence that a method worked with, where it recorded more of the model
            than was needed before; None if it did not.
    """

    needs: Collection[str]
    rules: RuleSet
    gradient_rules: RuleSet | None = None
    padding: Tensor | None = None
    special: Tensor | None = None
    class_specific: bool = True
    first_layer: int = 0
    streamed: bool = False
    release: bool = False
    make_forwards: Callable[[], Forwards] | None = None
    details: list[list[dict[str, Any]]] = field(default_factory=list)
    recorded_anew: Evidence | None = None

    @cached_property
    def token_mask(self) -> Tensor:
        """(batch, tokens), true where a token is no padding."""
        padding = self.layout.mark_padding(self.padding, self.batch)
        if padding is None:
            return torch.ones(self.batch, self.tokens, dtype=torch.bool, device=self.logits.device)
        return ~padding.to(self.logits.device)

    @cached_property
    def input_tokens(self) -> Tensor:
        """(batch, tokens), true where a token stands for a part of the input."""
        mask = self.token_mask & self.layout.mark_input_tokens(self.logits.device)
        if self.special is None or self.special.shape != (self.batch, self.layout.unit_count):
            return mask
        return mask & (self.layout.to_tokens(self.special.to(torch.int8)) == 0)

    @cached_property
    def pooling(self) -> Tensor:
        """(targets, batch, tokens), weights of the rows that the classifier reads."""
        if self.flow is not None:
            return carry_reads(self.flow, self.reads, self.tokens)
        if self._pools_from_stream:
            first = next(self._stream)
            self.__dict__["_stream"] = chain((first,), self._stream)
            weights = sum_keys(first(every_key=True))
        elif self.class_specific and "gradient" in self.needs:
            weights = sum_keys(iter((make_readings({"gradient": self.gradient[-1]}),)))
        else:
            weights = read_last_layer(self.trace, self.layers[-1], self._make_pooling_seeds())
        of_tokens = self.layers[-1].queries == self.layers[0].keys
        pooling = compute_pooling(weights, self.layout, of_tokens)
        return pooling.expand(self.targets.count, -1, -1)

    def _make_pooling_seeds(self) -> Tensor:
        """Targets that decide which rows are pooled: all of them, or the predicted class."""
        make = self.targets.make_seeds if self.class_specific else None
        return (make or self.targets.make_common_seeds)(self.logits)

    @cached_property
    def reads(self) -> list[Tensor]:
        """(targets, batch, tokens) for each layer of a flow: how much the target reads a token."""
        if self.flow is None:
            raise UndeclaredEvidenceError("Only a flow of tokens has readings of several layers.")
        seeds = self._make_pooling_seeds()
        read = read_streams(self.trace, self.flow, seeds, self.layout)
        return [one.expand(self.targets.count, -1, -1) for one in read]

    @property
    def last_pooling(self) -> Tensor:
        """(targets, batch, queries), weights of the rows of the last layer that are read."""
        return self.pooling if self.flow is None else self.reads[-1]

    @cached_property
    def attention(self) -> list[Tensor]:
        """The attention maps."""
        self._check_declared("attention")
        return join_heads(self.trace.attention(), self.layers)

    @property
    def gradient(self) -> list[Tensor]:
        """Gradient of the target at the maps; empty before the first layer that is read."""
        return self._read("gradient")

    @property
    def relevance(self) -> list[Tensor]:
        """Relevance of the target at the maps."""
        return self._read("relevance")

    @property
    def inputs(self) -> list[Tensor]:
        """The pixels, or the embeddings of tokens, at each place where the model reads them."""
        self._check_declared("inputs")
        return [leaf.detach() for leaf in self.trace.leaves]

    @property
    def input_gradient(self) -> list[Tensor]:
        """Gradient of the target at the inputs."""
        return self._read("input_gradient")

    @property
    def input_relevance(self) -> list[Tensor]:
        """Relevance of the target at the inputs."""
        return self._read("input_relevance")

    @cached_property
    def hidden(self) -> list[Tensor]:
        """The residual stream before each block and after the last."""
        self._check_declared("hidden")
        return self._split_tokens(self._list_hidden())

    @property
    def hidden_gradient(self) -> list[Tensor]:
        """Gradient of the target at the residual stream."""
        return self._read("hidden_gradient")

    @property
    def hidden_relevance(self) -> list[Tensor]:
        """Relevance of the target at the residual stream."""
        return self._read("hidden_relevance")

    @cached_property
    def value_input(self) -> list[Tensor]:
        """What the values of each attention are computed from."""
        self._check_declared("value_input")
        return self._split_tokens(list_value_inputs(self._blocks))

    @property
    def value_input_gradient(self) -> list[Tensor]:
        """Gradient of the target there."""
        return self._read("value_input_gradient")

    @property
    def blocks(self) -> list[Block]:
        """The operations around each attention."""
        self._check_declared("blocks")
        return self._blocks

    @cached_property
    def forwards(self) -> Forwards:
        """Runs the model again at other inputs."""
        self._check_declared("forwards")
        if self.make_forwards is None:
            raise UndeclaredEvidenceError("This evidence cannot run the model again.")
        return self.make_forwards()

    def derive(
        self,
        needs: Collection[str],
        gradient_rules: RuleSet | None = None,
        class_specific: bool = True,
        trace: Trace | None = None,
    ) -> Evidence:
        """Evidence of other kinds, or another trace, of the same classes."""
        return replace(
            self,
            trace=self.trace if trace is None else trace,
            needs=needs,
            gradient_rules=gradient_rules,
            class_specific=class_specific,
            first_layer=0,
            streamed=False,
            release=False,
            make_forwards=(lambda: self.forwards) if "forwards" in self.needs else None,
        )

    def fuse_heads(
        self,
        weigh: Callable[[MapReadings], Tensor],
        heads: HeadFusion = "mean",
        first: int = 0,
    ) -> Iterator[Tensor]:
        """A matrix (..., queries, keys) for each layer, from the last to a first one.

        Methods that are `streamed` can ask for this once: each layer is freed before the next.
        Where maps are long, keys that none of some queries attends to may be left out, as zeros.

        Args:
            weigh: Makes maps (..., heads, queries, keys) of the readings of some queries.
            heads: How heads are made one.
            first: The first layer; the method's `first_layer`.
        """
        for chunks in self._iterate_chunks(first):
            yield fuse_chunks(chunks(), weigh, heads)

    def _iterate_chunks(self, first: int) -> Iterator[MapChunks]:
        """Readings of the maps, layer by layer from the last to a first one."""
        if self._pools_from_stream:
            _ = self.pooling  # reads the last layer, which the stream then frees
        kinds = () if self.streamed else AT_MAPS.intersection(self.needs)
        lists = {kind: getattr(self, kind) for kind in kinds}
        return self._stream if self.streamed else iterate_layers(lists, first)

    def sum_queries(
        self,
        weigh: Callable[[MapReadings], Tensor],
        without_maps: Callable[[UnmappedSite], Tensor | None],
        first: int = 0,
    ) -> Iterator[Tensor]:
        """What all queries and heads of a layer add up to, (..., keys); the last layer first.

        As `fuse_heads`, for what can also be computed without maps, which long texts have too large
        ones of.

        Args:
            weigh: As for `fuse_heads`.
            without_maps: Computes the same sum without maps; None where it needs them.
            first: As for `fuse_heads`.
        """
        for chunks in self._iterate_chunks(first):
            site = chunks.find_unmapped()
            found = None if site is None else without_maps(site)
            yield sum_chunks(chunks(), weigh) if found is None else found

    def _check_declared(self, *kinds: str) -> None:
        if not set(kinds) & set(self.needs):
            raise UndeclaredEvidenceError(
                f"The method reads evidence that it did not declare: add '{kinds[0]}' to its needs."
            )
        if self.streamed and kinds[0] in AT_MAPS:
            raise UndeclaredEvidenceError(
                f"The method is streamed: it reads '{kinds[0]}' by evidence.fuse_heads(...)."
            )

    @property
    def _read_layers(self) -> list[AttentionLayer]:
        """Layers whose maps are read; one that does not exist is for the method to refuse."""
        first = self.first_layer
        exists = abs(first) <= len(self.layers) - (first >= 0)
        return self.layers[first if exists else 0 :]

    @cached_property
    def _blocks(self) -> list[Block]:
        if {"value_input", "value_input_gradient", "blocks"} & set(self.needs):
            return find_blocks(self.trace)
        return find_blocks_of_stream(self.trace, self.layers)

    def _list_hidden(self) -> list[tuple[Tensor, GradientEdge]]:
        if self.flow is not None:
            return list_entering(self.trace, self.layers, self.flow)
        return list_hidden_states(self.trace, self._blocks)

    def _split_tokens(self, values: list[tuple[Tensor, GradientEdge]]) -> list[Tensor]:
        return [self.trace.split_tokens(value, edge, value.shape) for value, edge in values]

    def _read(self, kind: str) -> list[Tensor]:
        self._check_declared(kind)
        return (self._gradients if kind.endswith("gradient") else self._relevances)[kind]

    @cached_property
    def _gradients(self) -> dict[str, list[Tensor]]:
        if "_stream" in self.__dict__ and self._streamed_places is not None:
            for _ in self._stream:  # which reads them on its way to the input
                pass
            return self._streamed_places.finish(self.trace)
        return self._read_declared("gradient", self.gradient_rules)

    @cached_property
    def _relevances(self) -> dict[str, list[Tensor]]:
        return self._read_declared("relevance", self.rules)

    def _list_places(self, what: str) -> PlaceReadings:
        """Where gradient or relevance is declared, other than at the maps."""
        tokens = {}
        if f"hidden_{what}" in self.needs:
            tokens[f"hidden_{what}"] = self._list_hidden()
        if f"value_input_{what}" in self.needs:
            tokens[f"value_input_{what}"] = list_value_inputs(self._blocks)
        inputs = {f"input_{what}": self.trace.leaves} if f"input_{what}" in self.needs else {}
        return PlaceReadings(inputs, tokens)

    def _read_declared(self, what: str, rules: RuleSet | None) -> dict[str, list[Tensor]]:
        """Gradient or relevance wherever it is declared, in one backward pass."""
        places = self._list_places(what)
        layers = [] if self.streamed or what not in self.needs else self._read_layers
        sites = [site for layer in layers for site in layer.sites]
        at = [*(site.weights for site in sites), *places.edges]
        read = self.trace.read(self.make_seeds(rules), at, rules) if at else []
        for number, value in enumerate(read[len(sites) :]):
            places.keep(number, value)
        maps = [s.split_heads(one, self.batch) for s, one in zip(sites, read, strict=False)]
        missing = len(self.layers) - len(layers) if layers else 0
        return {what: join_heads(maps, layers, missing), **places.finish(self.trace)}

    @property
    def _pools_from_stream(self) -> bool:
        reads_last = self.streamed and self.class_specific and "gradient" in self.needs
        return reads_last and self.flow is None

    @cached_property
    def _stream(self) -> Iterator[MapChunks]:
        """Readings of the maps, layer by layer from the last.

        Gradients elsewhere are read on the way, unless they are known already. Whatever else is
        declared is read before: what has been passed may be freed.
        """
        of_blocks = () if self.flow is None else ("blocks",)  # a flow has layers without any
        places = self._streamed_places
        on_the_way = () if places is None else places.kinds
        for kind in set(self.needs) - {*AT_MAPS, "forwards", *of_blocks, *on_the_way}:
            getattr(self, kind)
        if not self._pools_from_stream:
            _ = self.pooling
        rules = {"gradient": self.gradient_rules, "relevance": self.rules}
        layers = self._read_layers
        read = [site for layer in layers for site in layer.sites]
        seeds = {kind: self.make_seeds(how) for kind, how in rules.items() if kind in self.needs}
        sites = iterate_sites(
            self.trace,
            read,
            self.needs,
            seeds,
            rules,
            release=self.release,
            others=() if places is None else places.edges,
            keep=None if places is None else lambda number, values: places.keep(number, values[0]),
        )
        return join_sites(sites, [len(layer.sites) for layer in reversed(layers)])

    @cached_property
    def _streamed_places(self) -> PlaceReadings | None:
        """Where gradients are read while maps are streamed; None if in a pass of their own."""
        alone = "gradient" in self.needs and "relevance" not in self.needs
        if not (self.streamed and alone) or "_gradients" in self.__dict__:
            return None
        places = self._list_places("gradient")
        places.find_order(self.trace)
        return places
