"""Run a model on inputs whose parts are deleted in the order of their scores.

All deletion and insertion curves of whence are computed here. A unit is a pixel, a patch, a word or
a token. The caller provides a function that deletes units from its inputs and runs the model.

    >>> ranks = rank_units(scores, "highest")  # doctest: +SKIP
    >>> counts = count_units(ranks.shape[1], FRACTIONS)  # doctest: +SKIP
    >>> logits = delete_in_order(ranks, counts, run)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from whence._util.chunks import run_in_chunks
from whence._util.random import SeededRandom
from whence.errors import WhenceError

Order = Literal["highest", "lowest"]
Rounding = Literal["down", "up", "nearest"]
Run: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Logits (rows, classes) for deleted units (rows, units) of inputs with these indices (rows,)."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished forward passes and the number of all."""

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Fractions of units that perturbation tests delete; the clean input, at 0, comes before them."""


def rank_units(scores: Tensor, order: Order, allowed: Tensor | None = None) -> Tensor:
    """Rank units (maps, units) by when they are deleted, from 0. Equal scores go by position.

    The units that are deleted at a step are those with ``ranks < count``. Units that are not
    `allowed` (maps, units) are never deleted; their rank is the number of units.
    """
    if order not in get_args(Order):
        raise WhenceError(f"The order has to be one of {get_args(Order)}, not {order!r}.")
    if scores.dim() != 2:
        raise WhenceError(f"Scores have to be (n, units), not {tuple(scores.shape)}.")
    if scores.isnan().any():
        raise WhenceError("Some scores are not numbers, so they cannot be ordered.")
    sequence = scores.argsort(dim=1, descending=order == "highest", stable=True)
    if allowed is None:
        places = torch.arange(scores.shape[1], device=scores.device).expand_as(sequence)
        return torch.empty_like(sequence).scatter_(1, sequence, places)
    places = allowed.gather(1, sequence).cumsum(1) - 1
    ranks = torch.empty_like(sequence).scatter_(1, sequence, places)
    return ranks.masked_fill_(~allowed, scores.shape[1])


def count_units(
    units: int | Tensor, fractions: Sequence[float], rounding: Rounding = "down"
) -> Tensor:
    """Count the units that fractions of them are: (fractions,) or (maps, fractions), integers.

    Args:
        units: How many units there are: one number, or (maps,).
        fractions: From 0 to 1.
        rounding: ``"down"``, ``"up"``, or ``"nearest"`` but at least one unit. What is lost in
            writing 0.1 as a float does not count.
    """
    for fraction in fractions:
        if not 0 <= fraction <= 1:
            raise WhenceError(f"A fraction has to be between 0 and 1, not {fraction}.")
    device = units.device if isinstance(units, Tensor) else "cpu"
    total = torch.as_tensor(units, dtype=torch.float64, device=device)
    exact = total[..., None] * total.new_tensor(fractions)
    if rounding == "nearest":
        return exact.round().clamp(min=1).long()
    return ((exact + 1e-9).floor() if rounding == "down" else (exact - 1e-9).ceil()).long()


def delete_in_order(
    ranks: Tensor,
    counts: Tensor,
    run: Run,
    inputs: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Run the model with the first units of each order deleted: logits (orders, steps, classes).

    Args:
        ranks: (orders, units): when each unit is deleted, as `rank_units` returns it.
        counts: (steps,) or (orders, steps): how many units are deleted at each step.
        run: Deletes units and runs the model.
        inputs: (orders,), the index of the input that each order belongs to; 0 if left out.
        chunk_size: How many rows `run` gets at once; all if left out.
        progress: Called after each chunk.
    """
    counts = counts.to(ranks.device).expand(len(ranks), -1)
    deleted = ranks[:, None] < counts[..., None]
    if inputs is not None:
        inputs = inputs.repeat_interleave(counts.shape[1])
    rows = deleted.flatten(0, 1)
    logits = run_without(rows, run, inputs, chunk_size=chunk_size, progress=progress)
    return logits.reshape(*counts.shape, -1)


def run_without(
    deleted: Tensor,
    run: Run,
    inputs: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Run the model on inputs without some of their units, equal rows once: logits (rows, classes).

    Args:
        deleted: (rows, units), true where deleted.
        run: Deletes units and runs the model.
        inputs: (rows,), the index of each row's input; 0 if left out.
        chunk_size: As for `delete_in_order`.
        progress: As for `delete_in_order`.
    """
    if inputs is None:
        inputs = torch.zeros(len(deleted), dtype=torch.long, device=deleted.device)
    inputs = inputs.to(deleted.device)
    first, which = _find_distinct(deleted, inputs)
    # Rows with as many units left run together: texts of like length need little padding.
    order = (~deleted[first]).sum(1).argsort(stable=True)
    first = first[order]

    def work(chunk: range) -> Tensor:
        rows = first[chunk.start : chunk.stop]
        logits = run(deleted[rows], inputs[rows])
        if progress is not None:
            progress(chunk.stop, len(first))
        return logits

    logits = run_in_chunks(len(first), chunk_size or len(first), work)
    return logits[order.argsort()[which].to(logits.device)]


def _find_distinct(deleted: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the first of equal rows (distinct,), and which of these each row is (rows,)."""
    # Eight bits a byte, four bytes a word, and two sums of words times random numbers: comparing
    # rows is cheap for pixels too. Different rows have the same sums with a chance below 2^-64.
    bits = F.pad(deleted, (0, -deleted.shape[1] % 32)).to(torch.uint8).reshape(len(deleted), -1, 8)
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=deleted.device)
    words = (bits * weights).sum(-1, dtype=torch.uint8).view(torch.int32).long()
    if words.shape[1] > 2:
        factors = SeededRandom(0).draw_words(2, words.shape[1]).to(words.device)
        words = torch.stack([(words * one).sum(1) for one in factors], 1)
    _, which = torch.unique(torch.cat([inputs[:, None], words], 1), dim=0, return_inverse=True)
    rows = torch.arange(len(which), device=which.device)
    first = torch.full_like(rows, len(rows)).scatter_reduce_(0, which, rows, "amin")
    return first[: int(which.max()) + 1], which
