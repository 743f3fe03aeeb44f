"""Products over the layers of a flow: from the tokens that the target reads to the input's.

At each layer, rows of weights stay with its tokens along the skip connection, and go to its keys
multiplied by its map. Both then go on to the tokens upstream that these are made of.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.evidence.flow_reads import mark_standing
from whence.tracing.flow.flow import INPUT, FlowLayer, TokenFlow
from whence.tracing.flow.token_map import TokenMap


def roll_out_flow(
    evidence: Evidence,
    flow: TokenFlow,
    maps: Iterable[Tensor],
    normalize: bool = False,
) -> tuple[Tensor, Tensor]:
    """Multiply what the target reads by (I + A) of all maps A of a flow, the last layer's first.

    As `roll_out` does, it returns the product in two terms: that of skip connections alone, and
    the rest.

    Args:
        evidence: What the target reads.
        flow: How tokens pass the layers.
        maps: For each layer from the last, (..., queries, keys); fewer than there are layers if
            earlier ones are left out.
        normalize: Divide the rows of [I, A] by their sum.
    """
    rows = _Rows(flow, evidence.reads, evidence.tokens)
    given = iter(maps)
    for number in reversed(range(len(flow.layers))):
        layer, added = flow.layers[number], next(given, None)
        kept, moved = rows.take(number)
        if added is None:
            rows.add(layer.stream, kept, moved)
            continue
        if normalize:
            sums = int(layer.has_skip) + sum_rows(layer, added)
            sums = sums.masked_fill(sums == 0, 1)  # a row of zeros stays one
            kept, moved = kept / sums, moved / sums
        step = layer.multiply(kept + moved, added)
        rows.enter(number, kept if layer.has_skip else None, moved if layer.has_skip else None)
        rows.add(layer.keys, None, step)
        rows.add(layer.stream, *rows.take_entering(number))
    return rows.take(INPUT)


def sum_rows(layer: FlowLayer, maps: Tensor) -> Tensor:
    """Sum the rows of a layer's map: (..., batch, tokens of the stream)."""
    sums = maps.sum(-1)
    return layer.queries.push(sums if layer.groups == 1 else sums.flatten(-2))


class _Rows:
    """Rows of weights, in two terms, at the tokens that leave each layer and at the input's."""

    def __init__(self, flow: TokenFlow, reads: list[Tensor], tokens: int) -> None:
        zeros = reads[0].new_zeros(*reads[0].shape[:-1], tokens)
        self._kept = dict(enumerate(reads)) | {INPUT: zeros}
        self._moved = {number: torch.zeros_like(one) for number, one in self._kept.items()}
        self._entering: dict[int, tuple[Tensor | None, Tensor | None]] = {}
        self._current = 0
        del flow

    def take(self, number: int) -> tuple[Tensor, Tensor]:
        """The rows at a layer, from where they go on, or at the input."""
        self._current = number
        return self._kept.pop(number), self._moved.pop(number)

    def enter(self, number: int, kept: Tensor | None, moved: Tensor | None) -> None:
        """Keep rows that enter the layer that is passed now."""
        self._entering[number] = kept, moved

    def take_entering(self, number: int) -> tuple[Tensor | None, Tensor | None]:
        """The rows that enter the layer that is passed now."""
        return self._entering.pop(number)

    def add(self, sources: dict[int, TokenMap], kept: Tensor | None, moved: Tensor | None) -> None:
        """Add rows at tokens to the tokens upstream that these are made of."""
        for source, token_map in sources.items():
            if source == self._current:
                before = self._entering[source]
                step = None if moved is None else token_map.pull(moved)
                both = [one for one in (before[1], step) if one is not None]
                self._entering[source] = before[0], sum(both[1:], both[0]) if both else None
                continue
            if kept is not None:
                self._kept[source] = self._kept[source] + token_map.pull(kept)
            if moved is not None:
                self._moved[source] = self._moved[source] + token_map.pull(moved)


def are_read_alike(evidence: Evidence, flow: TokenFlow) -> Tensor:
    """Whether tokens that stand for a part of the input are all read alike: (targets, batch, 1)."""
    highest, lowest = [], []
    for number, read in enumerate(evidence.reads):
        standing = mark_standing(flow, number, evidence.layout, read)
        if bool(read.any()) and bool(standing.any()):
            highest.append(read.masked_fill(~standing, -torch.inf).amax(-1, keepdim=True))
            lowest.append(read.masked_fill(~standing, torch.inf).amin(-1, keepdim=True))
    if not highest:
        return torch.ones_like(evidence.reads[0][..., :1], dtype=torch.bool)
    top, bottom = torch.stack(highest).amax(0), torch.stack(lowest).amin(0)
    return top - bottom <= 1e-6 * top
