"""Find the flow of tokens in a trace: layer by layer, by marks that go from each to the next."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence.errors import WhenceError
from whence.layout.fields import TokenFields
from whence.tracing.dependence import find_fields
from whence.tracing.flow.arrangements import place_rows
from whence.tracing.flow.flow import INPUT, FlowLayer, TokenFlow
from whence.tracing.flow.places import TokenPlace, relate
from whence.tracing.flow.streams import Stream, find_streams
from whence.tracing.flow.token_map import TokenMap, make_maps
from whence.tracing.flow.units import gather_units, relate_fields
from whence.tracing.graph import AttentionLayer, find_layers, find_structure
from whence.tracing.mark_walk import MarkWalk
from whence.tracing.marks import compact
from whence.tracing.recording import InputPlace, edge_of
from whence.tracing.trace import Trace
from whence.tracing.views import find_dependent


def find_flow(trace: Trace, name: str | int, shape: Sequence[int]) -> TokenFlow:
    """Find how tokens pass the layers of attention.

    Args:
        trace: The recorded forward pass.
        name: The explained input.
        shape: Its shape.

    Raises:
        WhenceError: It cannot be proven.
    """
    finder = _FlowFinder(trace, name, shape)
    return finder.find()


class _FlowFinder:
    """Finds the layers of a flow one after the other, each from those upstream of it."""

    def __init__(self, trace: Trace, name: str | int, shape: Sequence[int]) -> None:
        self._trace, self._name, self._shape = trace, name, shape
        self._walk = MarkWalk(trace)
        self._layers = find_layers(trace)
        self._leaves = [edge_of(place.leaf) for place in trace.inputs if place.name == name]
        self._streams: list[Stream] = []
        self._products: set[Node] = {
            trace.entries[site.product.index].output.node
            for layer in self._layers
            for site in layer.sites
        }

    def find(self) -> TokenFlow:
        found: list[tuple[dict[int, Tensor], dict[int, Tensor]]] = []
        inputs: dict[tuple[int, str], TokenFields] = {}
        mixing = None
        is_text = all(place.rows is not None for place in self._trace.inputs)
        for number, layer in enumerate(self._layers):
            stream = self._find_stream(number, layer)
            of_stream = self._find_sources(stream.leaving, number)
            if is_text and mixing is None:
                every = self._find_sources(stream.leaving, number, branches=True)
                mixing = None if _are_same(of_stream, every) else layer.where
            self._streams.append(stream)
            keys = self._place_keys(layer, stream)
            of_keys = self._find_sources(keys, number, own=True)
            if is_text:
                self._refuse_cache(number, stream, of_keys)
            found.append((of_stream, of_keys))
            for kind, place in (("stream", stream.leaving), ("keys", keys)):
                fields = self._find_fields(place, number, kind == "keys")
                if fields is not None and bool((fields.counts > 0).any()):
                    inputs[number, kind] = fields
        return self._assemble(found, inputs, mixing)

    # One layer ----------------------------------------------------------------------------------

    def _find_stream(self, number: int, layer: AttentionLayer) -> Stream:
        for stream in find_streams(self._trace, self._walk, layer, self._products):
            keys = self._place_keys(layer, stream)
            if self._keeps_samples_apart(stream.leaving, number) and self._keeps_samples_apart(
                keys, number
            ):
                return stream
        unproven = (
            f"How the tokens around the attention in {layer.where} lie could not be proven. "
            f"Methods at the input, such as 'input_x_gradient', work."
        )
        raise WhenceError(next((site.problem for site in layer.sites if site.problem), unproven))

    def _refuse_cache(self, number: int, stream: Stream, of_keys: dict[int, Tensor]) -> None:
        """Refuse self-attention to more tokens of a text than are given.

        Raises:
            WhenceError: Some of its keys are made of nothing that is given.
        """
        layer = self._layers[number]
        keys = stream.arrangements[0].groups * layer.key_count
        if number not in of_keys or keys <= stream.count or len(layer.sites) > 1:
            return
        known = {key for one in of_keys.values() for key in one[:, 1].tolist()}
        if stream.arrangements[0].groups == 1 and len(known) < keys:
            raise WhenceError(
                f"The attention in {layer.where} reads tokens that are not given, as of a cache: "
                f"give the whole text without it."
            )

    def _place_keys(self, layer: AttentionLayer, stream: Stream) -> TokenPlace:
        site = layer.sites[0]
        edge = self._trace.entries[site.product.index].inputs[site.values_number]
        return place_rows(edge, site, stream.arrangements[0], site.key_count, site.keys_first)

    def _list_upstream(self, number: int, own: bool = False) -> dict[int, TokenPlace]:
        """Where tokens leave the layers upstream of one, and on request where they enter it."""
        streams = enumerate(self._streams[:number])
        beside = self._find_beside(number)
        places = {n: one.leaving for n, one in streams if self._find_beside(n) is None}
        if beside is not None:
            places.pop(beside)
        if own and len(self._streams) > number:
            entering = self._streams[number].entering
            if entering is not None and entering.edge not in [p.edge for p in places.values()]:
                places[number] = entering
        return places

    def _has_value(self, layer: AttentionLayer) -> bool:
        """Whether what enters a layer can be read."""
        try:
            graph = find_structure(self._trace).graph
            return layer.skip is not None and graph.find_value(layer.skip.input_edge) is not None
        except WhenceError:
            return False

    def _find_beside(self, number: int) -> int | None:
        """The first layer that is added in the same sum as another one."""
        addition = self._layers[number].addition
        for earlier, layer in enumerate(self._layers[:number]):
            if addition is not None and layer.addition is addition:
                return earlier
        return None

    def _run(
        self,
        start: GradientEdge,
        seed: Tensor,
        places: Sequence[TokenPlace],
        inputs: bool = False,
        branches: bool = False,
    ) -> list[Tensor | None]:
        edges = [place.edge for place in places] + (self._leaves if inputs else [])
        blocked = self._products - {edge.node for edge in edges}
        with torch.inference_mode(False), torch.no_grad():
            return self._walk.run(start, seed, edges, ends=True, blocked=blocked, branches=branches)

    def _keeps_samples_apart(self, place: TokenPlace, number: int) -> bool:
        if place.index.batch == 1:
            return True
        upstream = list(self._list_upstream(number).values())
        marks = self._run(place.edge, place.make_sample_seed(), upstream, inputs=True)
        own = torch.eye(place.index.batch, dtype=torch.bool)[..., None]
        for at, one in zip(upstream, marks, strict=False):
            if one is not None and bool((at.collect(one).cpu() & ~own).any()):
                return False
        inputs = [place for place in self._trace.inputs if place.name == self._name]
        for leaf, one in zip(inputs, marks[len(upstream) :], strict=True):
            if one is not None and bool((self._collect_samples(leaf, one) & ~own[..., 0]).any()):
                return False
        return True

    def _collect_samples(self, leaf: InputPlace, marks: Tensor) -> Tensor:
        """Which samples of an input are marked, (choices, batch)."""
        batch, marked = self._trace.batch, compact(marks) > 0
        if leaf.rows is None:
            return marked.flatten(2).any(-1).expand(-1, batch).cpu()
        length = torch.Size(self._shape[1:]).numel()
        by_row = marked.expand(marks.shape).reshape(len(marks), leaf.rows.numel(), -1).any(-1)
        rows = leaf.rows.reshape(-1)
        found = torch.zeros(len(marks), batch, dtype=torch.bool)
        for sample in range(batch):
            found[:, sample] = by_row[:, (rows >= 0) & (rows // length == sample)].any(-1).cpu()
        return found

    def _find_sources(
        self, place: TokenPlace, number: int, own: bool = False, branches: bool = False
    ) -> dict[int, Tensor]:
        """Which tokens of layers upstream the tokens of a place are made of."""
        upstream = self._list_upstream(number, own)
        if not upstream:
            return {}
        places = list(upstream.values())

        def mark(chosen: Tensor) -> list[Tensor | None]:
            marks = self._run(place.edge, place.make_seed(chosen), places, branches=branches)
            pairs = zip(places, marks, strict=True)
            return [None if one is None else at.collect(one) for at, one in pairs]

        device = place.index.tokens.device
        size = max(at.index.batch * at.count for at in places)
        found = relate(mark, place.count, size, device)
        pairs = zip(upstream, found, strict=True)
        return {source: relation for source, relation in pairs if len(relation)}

    def _find_fields(self, place: TokenPlace, number: int, own: bool) -> TokenFields | None:
        """The parts of the input that tokens stand for without a layer between them."""
        ends = [one.edge for one in self._list_upstream(number, own).values()]
        cuts = {edge.node for edge in ends} | self._products
        leaves = [edge.node for edge in self._leaves]
        if not find_dependent([place.edge.node], leaves, self._trace.overwrites, cuts)[0]:
            return None
        return find_fields(self._trace, place, self._name, self._shape, ends, self._products)

    # All layers ---------------------------------------------------------------------------------

    def _assemble(
        self,
        found: list[tuple[dict[int, Tensor], dict[int, Tensor]]],
        inputs: dict[tuple[int, str], TokenFields],
        mixing: str | None,
    ) -> TokenFlow:
        if not inputs:
            raise WhenceError("No attention that whence can follow reads the input.")
        finest = max(inputs, key=lambda key: int((inputs[key].counts > 0).sum()))
        by_value = self._walk.by_value or any(one.by_value for one in inputs.values())
        fields = gather_units(inputs[finest], list(inputs.values()))._replace(by_value=by_value)
        batch, device = self._trace.batch, self._trace.logits.device
        tokens = fields.counts.shape[1]
        layers = []
        for number, (layer, stream, (of_stream, of_keys)) in enumerate(
            zip(self._layers, self._streams, found, strict=True)
        ):
            counts = {n: one.count for n, one in enumerate(self._streams)} | {INPUT: tokens}
            key_count = stream.arrangements[0].groups * layer.key_count
            for kind, relations in (("stream", of_stream), ("keys", of_keys)):
                of_input = inputs.get((number, kind))
                if of_input is not None:
                    relations[INPUT] = relate_fields(of_input, fields, finest == (number, kind))
            maps = [
                dict(
                    zip(
                        relations,
                        make_maps(
                            [(one, counts[n]) for n, one in relations.items()], batch, count, device
                        ),
                        strict=True,
                    )
                )
                for relations, count in ((of_stream, stream.count), (of_keys, key_count))
            ]
            query_count = stream.arrangements[0].groups * layer.query_count
            (queries,) = make_maps([(stream.queries, query_count)], batch, stream.count, device)
            layers.append(
                FlowLayer(
                    stream.count,
                    layer.addition is not None,
                    stream.entering is not None and self._has_value(layer),
                    stream.arrangements,
                    queries,
                    maps[0],
                    maps[1],
                    self._find_beside(number),
                    None if stream.entering is None else stream.entering.index,
                    stream.leaving.index,
                    self._place_keys(layer, stream).index,
                )
            )
        return TokenFlow(layers, fields, _compose(layers), mixing)


def _are_same(a: dict[int, Tensor], b: dict[int, Tensor]) -> bool:
    """Whether relations are the same, in any order."""
    if a.keys() != b.keys() or any(len(a[n]) != len(b[n]) for n in a):
        return False
    return all(torch.equal(torch.unique(a[n], dim=0), torch.unique(b[n], dim=0)) for n in a)


def _compose(layers: list[FlowLayer]) -> list[TokenMap | None]:
    """For each layer, from its tokens to those of the input, along residual streams."""
    found: list[TokenMap | None] = []
    for layer in layers:
        parts = []
        for source, step in layer.stream.items():
            further = None if source == INPUT else found[source]
            if source == INPUT:
                parts.append(step)
            elif further is not None:
                parts.append(step.compose(further))
        found.append(_add(parts))
    return found


def _add(parts: list[TokenMap]) -> TokenMap | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return TokenMap(
        torch.cat([one.tokens for one in parts]),
        torch.cat([one.upstream for one in parts]),
        torch.cat([one.weights for one in parts]),
        parts[0].shape,
    )
