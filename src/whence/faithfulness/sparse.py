"""Leave out the steps of deletion curves that lie between two sure ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from whence.metrics.deletion import FRACTIONS, Run, count_units, delete_in_order, run_without

SURE = 0.005
"""A probability is sure below this, or above 1 less this."""
# The steps that are always run, as places among FRACTIONS: 30, 60 and 90 %.
_ENDS = [2, 5, 8]
_BETWEEN = 2  # steps between two of these


def delete_sparsely(
    ranks: Tensor,
    run: Run,
    inputs: Tensor,
    clean: Tensor,
    watch: Callable[[Tensor], Tensor],
    chunk_size: int,
) -> Tensor:
    """Run the model at 30, 60 and 90 % of each order, and between them where that can matter.

    The two steps between 0 and 30 %, 30 and 60 %, or 60 and 90 % are left out where the watched
    probability is below `SURE` at both ends, or above 1 - `SURE` at both.

    Args:
        ranks: (orders, units), as `rank_units` returns them.
        run: Deletes units and runs the model.
        inputs: (orders,), the index of the input that each order belongs to.
        clean: (orders, classes), logits with nothing deleted.
        watch: Probabilities (orders, steps) of the class that each order watches, from logits.
        chunk_size: How many rows `run` gets at once.

    Returns:
        Logits (orders, `FRACTIONS`, classes), not numbers at the steps that were left out.
    """
    counts = count_units(ranks.shape[1], FRACTIONS).to(ranks.device)
    ends = delete_in_order(ranks, counts[_ENDS], run, inputs, chunk_size=chunk_size)
    logits = ends.new_full((len(ranks), len(FRACTIONS), ends.shape[-1]), torch.nan)
    logits[:, _ENDS] = ends
    chances = watch(torch.cat([clean[:, None].to(ends), ends], 1))
    places = (~_find_sure(chances)).nonzero().to(ranks.device)
    if len(places):
        orders, thirds = places.repeat_interleave(_BETWEEN, 0).unbind(1)
        steps = thirds * (_BETWEEN + 1) + torch.arange(len(orders), device=ranks.device) % _BETWEEN
        deleted = ranks[orders] < counts[steps, None]
        found = run_without(deleted, run, inputs.to(ranks.device)[orders], chunk_size=chunk_size)
        logits[orders.to(logits.device), steps.to(logits.device)] = found
    return logits


def interpolate_left_out(values: Tensor) -> Tensor:
    """Put steps that are not numbers on the line between their neighbours, (orders, steps)."""
    values = values.clone()
    for at in range(1, values.shape[1]):
        missing = values[:, at].isnan()
        if missing.any():
            left = -at % (_BETWEEN + 1)  # steps to the next that was run
            before, after = values[:, at - 1], values[:, at + left]
            line = before + (after - before) / (left + 1)
            values[:, at] = torch.where(missing, line, values[:, at])
    return values


def _find_sure(chances: Tensor) -> Tensor:
    """Whether both ends of each third are sure, (orders, thirds)."""
    low, high = chances <= SURE, chances >= 1 - SURE
    return (low[:, :-1] & low[:, 1:]) | (high[:, :-1] & high[:, 1:])
