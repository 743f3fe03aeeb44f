"""Products over the layers of a flow: from the tokens that the target reads to the input's.

At each layer, rows of weights stay with its tokens along the skip connection, and go to its keys
multiplied by its map. Both then go on to the tokens upstream that these are made of.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.tracing.flow.flow import INPUT, FlowLayer, TokenFlow


def roll_out_flow(
    evidence: Evidence,
    flow: TokenFlow,
    maps: Iterable[Tensor | None],
    normalize: bool = False,
) -> tuple[Tensor, Tensor]:
    """Multiply what the target reads by (I + A) of all maps A of a flow, the last layer's first.

    As `roll_out` does, it returns the product in two terms: that of skip connections alone, and
    the rest.

    Args:
        evidence: What the target reads.
        flow: How tokens pass the layers.
        maps: For each layer from the last, (..., queries, keys), or None; fewer than there are
            layers if earlier ones are left out.
        normalize: Divide the rows of [I, A] by their sum.
    """
    kept, moved = _start_rows(evidence)
    given, together = iter(maps), list[tuple[int, Tensor]]()
    for number in reversed(range(len(flow.layers))):
        layer, added = flow.layers[number], next(given, None)
        if added is not None:
            together.append((number, added.to(kept[number].dtype)))
        if layer.beside is not None:  # they are added in one sum
            continue
        own_kept, own_moved = kept.pop(number), moved.pop(number)
        if normalize and together:
            each = [sum_rows(flow.layers[n], one) for n, one in together]
            sums = sum(each[1:], int(layer.has_skip) + each[0])
            sums = sums.masked_fill(sums == 0, 1)  # a row of zeros stays one
            own_kept, own_moved = own_kept / sums, own_moved / sums
        rows, entering = own_kept + own_moved, own_moved
        if not layer.has_skip:
            own_kept, entering = torch.zeros_like(own_kept), torch.zeros_like(own_moved)
        while together:
            own, one = together.pop()
            step = flow.layers[own].multiply(rows, one)
            for source, to_keys in flow.layers[own].keys.items():
                if source == own:  # what enters the layer
                    entering = entering + to_keys.pull(step)
                else:
                    moved[source] = moved[source] + to_keys.pull(step)
        for source, token_map in layer.stream.items():
            kept[source] = kept[source] + token_map.pull(own_kept)
            moved[source] = moved[source] + token_map.pull(entering)
    return kept[INPUT], moved[INPUT]


def follow_layer(evidence: Evidence, flow: TokenFlow, number: int, fused: Tensor) -> Tensor:
    """What goes to the input through the map of one layer, and else along residual streams.

    Args:
        evidence: What the target reads.
        flow: How tokens pass the layers.
        number: The layer.
        fused: Its map, heads made one.
    """
    later = len(flow.layers) - 1 - number
    _, moved = roll_out_flow(evidence, flow, [*[None] * later, fused])
    if not flow.find_keys(number):
        raise WhenceError(
            f"layer={number}, the attention in {evidence.layers[number].where}, is not to tokens "
            f"of the input. Choose another layer."
        )
    return moved


def _start_rows(evidence: Evidence) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Rows in two terms, by the number of the layer that tokens leave, or of the input."""
    zeros = evidence.reads[0].new_zeros(*evidence.reads[0].shape[:-1], evidence.tokens)
    kept = dict(enumerate(evidence.reads)) | {INPUT: zeros}
    return kept, {number: torch.zeros_like(rows) for number, rows in kept.items()}


def sum_rows(layer: FlowLayer, maps: Tensor) -> Tensor:
    """Sum the rows of a layer's map: (..., batch, tokens of the stream)."""
    sums = maps.sum(-1)
    return layer.queries.push(sums if layer.groups == 1 else sums.flatten(-2))


def are_read_alike(evidence: Evidence, flow: TokenFlow) -> Tensor:
    """Whether all tokens of the input are read, and those of a layer alike: (targets, batch, 1).

    Padding does not count.
    """
    highest, lowest = [], []
    own = evidence.input_tokens
    for read, stands_for in zip(evidence.reads, flow.stands_for, strict=True):
        standing = read.new_zeros(read.shape[-2:], dtype=torch.bool)
        if stands_for is not None:
            standing = stands_for.push(own.to(read.dtype)) > 0
        counts = standing & read.any(-1, keepdim=True)
        highest.append(read.masked_fill(~counts, -torch.inf).amax(-1, keepdim=True))
        lowest.append(read.masked_fill(~counts, torch.inf).amin(-1, keepdim=True))
    top, bottom = torch.stack(highest).amax(0), torch.stack(lowest).amin(0)
    reads_all = ((evidence.pooling > 0) | ~own).all(-1, keepdim=True)
    return (reads_all & (top - bottom <= 1e-6 * top)) | top.isinf()
