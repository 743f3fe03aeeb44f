"""TokenFlow: how tokens pass the layers of attention of any model, from the input to the target.

In a plain Transformer a token keeps its place in one sequence through all layers. Elsewhere tokens
are put into windows and taken back, merged, pooled for keys, put together with those of another
stack, or attended to from another sequence. A flow has for each layer sparse maps from its tokens,
and from its keys, to the tokens upstream that they are made of; a merged token is the mean of what
was merged. All is found by marks that go backward from one layer to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from whence.layout.fields import TokenFields
from whence.tracing.flow.places import TokenIndex
from whence.tracing.flow.token_map import TokenMap
from whence.tracing.ops.attention import Arrangement

INPUT = -1
"""The number of the input among the sources of tokens."""


@dataclass
class FlowLayer:
    """A layer of attention in a flow.

    Attributes:
        count: Number of tokens of its residual stream.
        has_skip: Whether something leads around the attention.
        has_entry: Whether it is a skip connection, and what enters the block can be read.
        arrangements: How the leading dimensions of the maps of each site are laid out.
        queries: From the tokens of the stream to queries; of all groups one after the other.
        stream: From the tokens that enter to those of layers upstream, by number, or of the input.
        keys: From keys, of all groups one after the other, to tokens likewise; the number of the
            layer itself stands for what enters it.
        beside: The number of the first layer whose attention is added in the same sum, if it is
            another.
        entering: Which token each element of what enters belongs to; None if that is not known.
        leaving: The same of what leaves.
        key_index: Which key each element of the values belongs to.
    """

    count: int
    has_skip: bool
    has_entry: bool
    arrangements: list[Arrangement]
    queries: TokenMap
    stream: dict[int, TokenMap]
    keys: dict[int, TokenMap]
    beside: int | None
    entering: TokenIndex | None
    leaving: TokenIndex
    key_index: TokenIndex

    @property
    def groups(self) -> int:
        """Number of groups of tokens that attend to each other, such as windows."""
        return self.arrangements[0].groups

    def multiply(self, rows: Tensor, maps: Tensor) -> Tensor:
        """Multiply rows, (..., batch, tokens), by a map: (..., batch, keys of all groups).

        Args:
            rows: Weights of the tokens of the stream.
            maps: (..., batch, queries, keys), or (..., batch, groups, queries, keys).
        """
        of_queries = self.queries.pull(rows)
        if self.groups == 1:
            return (of_queries[..., None, :] @ maps)[..., 0, :]
        split = of_queries.reshape(*of_queries.shape[:-1], self.groups, 1, -1)
        return (split @ maps).flatten(-3)

    def multiply_keys(self, maps: Tensor, columns: Tensor) -> Tensor:
        """Multiply a map by columns, (..., batch, keys of all groups): (..., batch, tokens)."""
        if self.groups == 1:
            return self.queries.push((maps @ columns[..., None])[..., 0])
        split = columns.reshape(*columns.shape[:-1], self.groups, -1, 1)
        return self.queries.push((maps @ split).flatten(-3))


@dataclass
class TokenFlow:
    """How tokens pass the layers of attention.

    Attributes:
        layers: The layers in the order of computation.
        fields: The part of the input that each of its tokens stands for.
        stands_for: For each layer, from its tokens to those of the input that they are made of
            along residual streams; None if there are none.
        mixing: A layer beside which tokens of a text meet outside of attention; None if there is
            none.
    """

    layers: list[FlowLayer]
    fields: TokenFields
    stands_for: list[TokenMap | None]
    mixing: str | None
    _of_keys: dict[int, list[TokenMap]] = field(default_factory=dict, repr=False)

    def list_standing(self) -> list[int]:
        """The layers whose hidden states count as those of tokens of the input.

        These are the layers whose tokens stand for parts of it; if there are none, those whose keys
        do. Of layers that are added in one sum, the first stands for all.
        """
        first = [number for number, layer in enumerate(self.layers) if layer.beside is None]
        standing = [number for number in first if self.stands_for[number] is not None]
        return standing or [number for number in first if self.find_keys(number)]

    def find_hidden(self, number: int) -> list[TokenMap]:
        """From the hidden states of a layer to the tokens of the input.

        They are what enters it, or its values where that is not known.
        """
        stands_for = self.stands_for[number]
        if stands_for is not None and self.layers[number].has_entry:
            return [stands_for]
        return self.find_keys(number)

    def find_keys(self, number: int) -> list[TokenMap]:
        """From the keys of a layer to the tokens of the input that they are made of."""
        if number not in self._of_keys:
            maps = []
            for source, step in self.layers[number].keys.items():
                further = None if source == INPUT else self.stands_for[source]
                if source == INPUT:
                    maps.append(step)
                elif further is not None:
                    maps.append(step.compose(further))
            self._of_keys[number] = maps
        return self._of_keys[number]
