"""Value zeroing where tokens are in windows or merged: one key of all windows at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.tracing import Edit
from whence.tracing.flow.flow import INPUT, FlowLayer, TokenFlow
from whence.tracing.flow.places import TokenIndex
from whence.tracing.graph import Block

Distance = Callable[[Tensor, Tensor], Tensor]


def zero_values_in_flow(evidence: Evidence, flow: TokenFlow, measure: Distance) -> list[Tensor]:
    """Measure how far the outputs of each layer move without the value of a key.

    Within a block, tokens of different windows do not meet. So one pass serves the key of the same
    number in all windows, and all layers, as each passes on its output of the traced pass.

    Args:
        evidence: With blocks and forwards.
        flow: How tokens pass the layers.
        measure: The distance of outputs, (batch, tokens, width), from clean ones.

    Returns:
        For each layer, (batch, groups, queries, keys), or (batch, queries, keys) of one group.

    Raises:
        WhenceError: A layer attends to another sequence, or has no block that can be read.
    """
    zeroings = [
        _LayerZeroing(block, layer, number, evidence.batch)
        for number, (block, layer) in enumerate(zip(evidence.blocks, flow.layers, strict=True))
    ]
    samples = torch.arange(evidence.batch, device=evidence.logits.device)

    def run(edits: list[dict[int, Edit]]) -> None:
        merged = {index: edit for of_layer in edits for index, edit in of_layer.items()}
        evidence.forwards.run_edited(samples, merged)

    for bit in range(max(one.code_length for one in zeroings)):
        run([one.mark_tokens(bit) for one in zeroings])
    for key in range(max(one.key_count for one in zeroings)):
        run([one.zero_key(key, measure) for one in zeroings if key < one.key_count])
    return [one.find_maps() for one in zeroings]


def follow_maps(evidence: Evidence, flow: TokenFlow, maps: list[Tensor]) -> Tensor:
    """Multiply what the target reads by the maps of all layers, the last one's first.

    The maps have the skip connection inside of them, and rows that sum to 1 or 0.
    """
    rows = {number: read.to(maps[0].dtype) for number, read in enumerate(evidence.reads)}
    rows[INPUT] = maps[0].new_zeros(*evidence.reads[0].shape[:-1], evidence.tokens)
    for number in reversed(range(len(flow.layers))):
        layer = flow.layers[number]
        at_keys = layer.multiply(rows.pop(number), maps[number])
        entering = layer.keys[number].pull(at_keys)
        for source, token_map in layer.stream.items():
            rows[source] = rows[source] + token_map.pull(entering)
    return rows[INPUT]


class _LayerZeroing:
    """Edits of one block of a flow while the model runs, and what is seen at its output.

    Attributes:
        key_count: Number of keys of a window.
        code_length: How many bits number all tokens of the batch, from 1 on.
    """

    def __init__(self, block: Block, layer: FlowLayer, number: int, batch: int) -> None:
        if set(layer.keys) != {number} or layer.beside is not None or len(block.sites) > 1:
            raise WhenceError(
                f"The attention in {block.site.where} is to another sequence, or is computed "
                f"beside another: this method follows tokens that attend to those of their own "
                f"sequence alone. 'attention_norm' works."
            )
        self._block, self._layer, self._batch = block, layer, batch
        self.key_count = block.site.key_count
        self.code_length = (batch * layer.count).bit_length()
        self._clean = block.output.output.detach()
        self._codes = torch.zeros(self._clean.shape, dtype=torch.long, device=self._clean.device)
        self._distances: list[Tensor] = []
        self._index: TokenIndex | None = None

    def mark_tokens(self, bit: int) -> dict[int, Edit]:
        """Make edits that change some tokens after the attention, to see which output is whose."""
        addition, output = self._block.skip_addition, self._block.output

        def change_some(value: Tensor) -> Tensor:
            index = self._layer.leaving
            is_one = ((index.numbers + 1) >> bit & 1).bool() & (index.tokens >= 0)
            generator = torch.Generator().manual_seed(bit)
            noise = torch.rand(value.shape, generator=generator, device="cpu") + 1
            return value + (noise.to(value) * is_one.to(value.device)).to(value.dtype)

        def note_changes(value: Tensor) -> Tensor:
            self._codes += (value.detach() != self._clean).long() << bit
            return self._clean

        if addition is output:
            return {output.index: Edit(output=lambda value: note_changes(change_some(value)))}
        return {
            addition.index: Edit(output=change_some),
            output.index: Edit(output=note_changes),
        }

    def zero_key(self, key: int, measure: Distance) -> dict[int, Edit]:
        """Make edits that set one key's values to zero, in all windows, heads and samples."""
        site = self._block.site

        def zero(*factors: Tensor) -> tuple[Tensor, ...]:
            changed = list(factors)
            values = factors[site.values_number].clone()
            (values[..., key] if site.keys_first else values[..., key, :]).zero_()
            changed[site.values_number] = values
            return tuple(changed)

        def restore(value: Tensor) -> Tensor:
            rows = self._get_index().to_rows(torch.stack([value.detach(), self._clean]))
            self._distances.append(measure(rows[0], rows[1]))
            return self._clean

        output = self._block.output
        return {site.product.index: Edit(inputs=zero), output.index: Edit(output=restore)}

    def find_maps(self) -> Tensor:
        """The distances of queries' outputs without each key."""
        layer, of_tokens = self._layer, torch.stack(self._distances, -1)
        to_query, (batch, _, queries) = layer.queries, layer.queries.shape
        maps = of_tokens
        if not to_query.is_identity:
            if len(torch.unique(to_query.upstream)) != len(to_query.upstream):
                raise WhenceError(
                    f"Several tokens share a query of the attention in {self._block.site.where}, "
                    f"so that it cannot be told how far each moves. 'attention_norm' works."
                )
            flat, device = of_tokens.flatten(0, 1), of_tokens.device
            maps = flat.new_zeros(batch * queries, self.key_count)
            maps[to_query.upstream.to(device)] = flat[to_query.tokens.to(device)]
        if layer.groups == 1:
            return maps.reshape(batch, -1, self.key_count)
        return maps.reshape(batch, layer.groups, -1, self.key_count)

    def _get_index(self) -> TokenIndex:
        """Which token each element of the output belongs to, as changes have shown."""
        if self._index is None:
            count = self._layer.count
            numbers = self._codes - 1
            if not bool(((numbers >= 0) & (numbers < self._batch * count)).all()):
                raise WhenceError(
                    f"Tokens meet after the attention in {self._block.site.where}, before its "
                    f"block ends, as where a convolution follows: how far each token's output "
                    f"moves does not tell what attention moved. 'attention_norm' works."
                )
            self._index = TokenIndex(numbers // count, numbers % count, self._batch, count)
        return self._index
