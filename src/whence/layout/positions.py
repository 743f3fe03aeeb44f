"""Layout: which part of the input each token stands for, and which tokens the classifier reads."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.layout.division import choose_grid, divide_axes, divide_length, find_axes
from whence.layout.fields import TokenFields
from whence.layout.images import find_units
from whence.layout.lattice import Cells, find_rows


@dataclass(frozen=True)
class Layout:
    """Positions of patches, prefix tokens and pooled tokens in a sequence.

    Pass a layout to `Explainer` to state what whence cannot find from the model.

    Attributes:
        grid: Number of patches along each axis, in reading order: (rows, columns) of an image,
            (frames, rows, columns) of a video, (segments,) of a signal; None: found, or no grid.
        prefix: Number of tokens before the first patch (class, distillation, registers); None:
            found.
        pooled: Positions of the tokens that the classifier reads; None: found from gradients.
        special: Positions of tokens that stand for no part of the input although they are looked
            up like words, such as ``[CLS]``; None: those that the tokenizer calls special.
    """

    grid: tuple[int, ...] | None = None
    prefix: int | None = None
    pooled: tuple[int, ...] | None = None
    special: tuple[int, ...] | None = None


@dataclass(frozen=True)
class FoundLayout(Layout):
    """A layout as it was found: units of the input, and the token that stands for each.

    Attributes:
        tokens: Number of tokens of the sequence.
        units: For each sample, or once for all, the token of each unit in reading order; -1 if a
            unit has none.
        axes: The input's dimensions that the grid lies along, counted from the first after the
            batch; empty if units are token ids.
        cells: For each axis, which indices belong to each row, column, ... of units.
        absent: For each sample, tokens that stand for a unit but do not depend on it here, as
            padding of a signal does; empty if there are none.
        doubt: A sentence on what could not be proven; empty if all was.
        by_value: Whether whole numbers among the inputs may decide which token stands for what.
        note: A sentence on what units are, where they are not what tokens stand for.
        flow: How tokens pass the layers of the model, where that was found with the layout.
    """

    tokens: int = 0
    units: tuple[tuple[int, ...], ...] = ((),)
    axes: tuple[int, ...] = ()
    cells: Cells = ()
    absent: tuple[tuple[int, ...], ...] = ()
    doubt: str = ""
    note: str = ""
    by_value: bool = False
    flow: object = field(default=None, repr=False, compare=False)

    @property
    def unit_count(self) -> int:
        """Number of units."""
        return len(self.units[0])

    def mark_unit_tokens(self, device: torch.device) -> Tensor:
        """Mark the tokens that stand for units: (batch or 1, tokens)."""
        mask = torch.zeros(len(self.units), self.tokens + 1, dtype=torch.bool, device=device)
        return mask.scatter(1, _to_tensor(self.units, self.tokens, device), True)[:, :-1]

    def mark_input_tokens(self, device: torch.device) -> Tensor:
        """Mark the tokens that stand for units and are not stated to be special."""
        mask = self.mark_unit_tokens(device)
        if self.special:
            mask[:, list(self.special)] = False
        return mask

    def to_units(self, values: Tensor, samples: Tensor | None = None) -> Tensor:
        """Select the values of units, (..., batch, units), from those of tokens; 0 if it has none.

        Args:
            values: (..., batch, tokens).
            samples: Which sample each row of the batch is, if they are not all in order.
        """
        numbers = self.units[0]
        start = numbers[0] if numbers else 0
        if len(self.units) == 1 and numbers == tuple(range(start, start + len(numbers))):
            return values[..., start : start + len(numbers)]
        index = _to_tensor(self.units, self.tokens, values.device)
        index = index[samples] if samples is not None and len(index) > 1 else index
        padded = torch.cat([values, values.new_zeros(*values.shape[:-1], 1)], -1)
        return padded.gather(-1, index.expand(*values.shape[:-1], -1))

    def to_tokens(self, values: Tensor) -> Tensor:
        """Place the values of units, (..., batch, units), at their tokens; 0 at all others."""
        index = _to_tensor(self.units, self.tokens, values.device)
        whole = values.new_zeros(*values.shape[:-1], self.tokens + 1)
        return whole.scatter(-1, index.expand(*values.shape[:-1], -1), values)[..., :-1]

    def number_elements(self, shape: torch.Size, device: torch.device) -> Tensor:
        """The number of the unit of each element of one sample of this shape; -1 if of none.

        Dimensions that the grid does not lie along have a length of 1.
        """
        number = torch.zeros([1] * len(shape), dtype=torch.long, device=device)
        is_outside = number < 0
        for axis, cells in zip(self.axes, self.cells, strict=True):
            line = _number_line(cells, shape[axis], device)
            line = line.reshape([-1 if d == axis else 1 for d in range(len(shape))])
            number, is_outside = number * len(cells) + line, is_outside | (line < 0)
        return torch.where(is_outside, -1, number)

    def mark_padding(
        self, padding: Tensor | None, batch: int, absent: bool = True
    ) -> Tensor | None:
        """Mark tokens of padding, (batch, tokens), given that of the input; None if there is none.

        Args:
            padding: True where there is padding, (batch, n): of units, of tokens, or of the length
                of a signal. A segment of a signal is padding if all of it is.
            batch: Number of samples.
            absent: Whether tokens that depend on nothing are padding, too. A segment that is
                padding in part may have none that reads the rest.
        """
        marked = None
        if padding is not None and padding.shape == (batch, self.unit_count):
            marked = self.to_tokens(padding.to(torch.int8)) > 0
        elif padding is not None and padding.shape == (batch, self.tokens):
            marked = padding
        elif padding is not None and len(self.axes) == 1:
            starts, stops = _to_tensor(self.cells[0], 0, padding.device).unbind(1)
            if padding.shape[1] >= self.cells[0][-1][1]:
                before = torch.nn.functional.pad((~padding).long().cumsum(1), (1, 0))
                marked = self.to_tokens((before[:, starts] == before[:, stops]).to(torch.int8)) > 0
        if not self.absent or not absent:
            return marked
        empty = torch.zeros(batch, self.tokens, dtype=torch.bool, device="cpu")
        for row, tokens in zip(empty, self.absent, strict=True):
            row[list(tokens)] = True
        return empty if marked is None else marked | empty.to(marked.device)


@lru_cache(maxsize=64)
def _to_tensor(rows: tuple[tuple[int, ...], ...], missing: int, device: torch.device) -> Tensor:
    """Numbers as a tensor, with another in place of -1; made once, also for compiled programs."""
    return torch.tensor([[missing if n < 0 else n for n in row] for row in rows], device=device)


@lru_cache(maxsize=64)
def _number_line(cells: tuple[tuple[int, int], ...], length: int, device: torch.device) -> Tensor:
    line = torch.full((length,), -1)
    for number, (start, stop) in enumerate(cells):
        line[start:stop] = number
    return line.to(device)


# Finding -----------------------------------------------------------------------------------------


def find_layout(given: Layout, main: Tensor, fields: TokenFields) -> FoundLayout:
    """Find the layout of a sequence, as far as the user did not state it.

    Args:
        given: What the user stated.
        main: The input that is explained.
        fields: What each token of the sequence stands for.

    Raises:
        WhenceError: What the user stated does not fit.
    """
    tokens = fields.counts.shape[1]
    for name in ("pooled", "special"):
        positions = getattr(given, name)
        if positions is not None and not (positions and all(0 <= p < tokens for p in positions)):
            raise WhenceError(
                f"Layout({name}={positions}) does not fit: name some of the tokens 0 to "
                f"{tokens - 1}."
            )
    found = _prove_layout(main, fields)
    if found is None:
        stated = _state_layout(given, main, tokens)
        return dataclasses.replace(stated, by_value=fields.by_value)
    first = min((n for row in found.units for n in row if n >= 0), default=0)
    if given.grid is not None and found.grid is None and math.prod(given.grid) == found.unit_count:
        found = dataclasses.replace(found, grid=given.grid)  # embeddings of patches
    if given.grid not in (None, found.grid) or given.prefix not in (None, first):
        grid = f"a grid of {'x'.join(map(str, found.grid))}" if found.grid else "single rows"
        raise WhenceError(
            f"The layout does not fit: the model's tokens stand for {grid} of the input, from "
            f"token {first} on, as is seen from what they depend on."
        )
    found = dataclasses.replace(found, prefix=first, by_value=fields.by_value)
    return dataclasses.replace(found, pooled=given.pooled, special=given.special)


def _prove_layout(main: Tensor, fields: TokenFields) -> FoundLayout | None:
    tokens = fields.counts.shape[1]
    if not main.is_floating_point():
        of_ids = find_rows(fields)
        return None if of_ids is None else FoundLayout(tokens=tokens, units=of_ids)
    lattice = find_units(fields)
    if lattice is None:
        return None
    found = FoundLayout(
        grid=lattice.grid,
        tokens=tokens,
        units=lattice.units,
        axes=lattice.axes,
        cells=lattice.cells,
        absent=_find_absent(fields, lattice.units),
    )
    if len(lattice.axes) > 1 or any(stop - start != 1 for start, stop in lattice.cells[0]):
        return found
    # Each token stands for one row, as with embeddings: all rows are units, in no grid.
    length = fields.shape[lattice.axes[0]]
    line = _number_line(lattice.cells[0], length, torch.device("cpu")).tolist()
    units = tuple(tuple(row[n] if n >= 0 else -1 for n in line) for row in lattice.units)
    return dataclasses.replace(
        found, grid=None, units=units, cells=(divide_length(length, length),)
    )


def _find_absent(
    fields: TokenFields, units: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], ...]:
    """For each sample, the tokens of units that depend on nothing there."""
    has_holes = min(units[0]) < 0
    if len(units) > 1 or has_holes or bool((fields.counts[:, list(units[0])] > 0).all()):
        return ()
    empty = (fields.counts == 0).tolist()
    return tuple(tuple(token for token in units[0] if row[token]) for row in empty)


def _state_layout(given: Layout, main: Tensor, tokens: int) -> FoundLayout:
    """The layout that the user states, where none is proven; plain tokens otherwise."""
    prefix = given.prefix or 0
    if given.grid is not None:
        prefix = tokens - math.prod(given.grid)
        if prefix < 0 or given.prefix not in (None, prefix) or len(given.grid) >= main.dim():
            raise WhenceError(
                f"The layout does not fit: {given.prefix or 0} prefix token(s) and a grid of "
                f"{'x'.join(map(str, given.grid))} patches are not the model's {tokens} tokens."
            )
    units = (tuple(range(prefix, tokens)),)
    stated = FoundLayout(given.grid, prefix, given.pooled, given.special, tokens, units)
    if given.grid is None:
        return dataclasses.replace(stated, doubt=_describe_doubt(main, tokens))
    axes = find_axes(main, len(given.grid))
    return dataclasses.replace(stated, axes=axes, cells=divide_axes(main, axes, given.grid))


def _describe_doubt(main: Tensor, tokens: int) -> str:
    size = "x".join(map(str, main.shape[1:]))
    return (
        f"Scores are of the model's {tokens} tokens as they come: which part of the input, of size "
        f"{size}, each stands for could not be proven from what it depends on. If you know, say "
        f"so: Explainer(model, layout=Layout(grid=(rows, columns), prefix=1))."
    )


def divide_input(given: Layout, main: Tensor) -> FoundLayout:
    """A layout of equal parts of an input, where no tokens tell of which parts it consists.

    An image is divided into squares: the largest of at most 16 pixels a side that fit evenly and
    make at least 8 rows and columns; where none do, or smaller ones would be very many, into 14 x
    14 cells. A signal is divided into at most 100 segments; token ids and rows of embeddings are
    units of their own.

    Raises:
        WhenceError: The grid that the user stated does not fit.
    """
    is_rows = not main.is_floating_point()
    if is_rows:
        units = (tuple(range(main.shape[1])),)
        return FoundLayout(None, 0, given.pooled, given.special, main.shape[1], units)
    grid = choose_grid(main, given.grid)
    axes = find_axes(main, len(grid))
    cells, count = divide_axes(main, axes, grid), math.prod(grid)
    shown = None if len(grid) == 1 and grid[0] == main.shape[1 + axes[0]] else grid
    note = (
        f"Scores are of {'x'.join(map(str, grid))} equal parts of the input, as no token of the "
        f"model is known to stand for a part of it."
    )
    units = (tuple(range(count)),)
    found = FoundLayout(shown, 0, given.pooled, given.special, count, units, axes, cells)
    return dataclasses.replace(found, note=note)


# Pooling -----------------------------------------------------------------------------------------
def compute_pooling(dependence: Tensor, layout: FoundLayout, of_tokens: bool = True) -> Tensor:
    """Weight each token by how much the classifier reads it; weights sum to 1.

    Tokens do not mix after the last attention, so the logit has a gradient exactly at the tokens
    that the classifier reads. A class token alone gets weight 1; averaged tokens get equal weights;
    class and distillation token get a half each. Where a head reads tokens that stand for a part of
    the input and others (the class token beside the patches' mean, as in DINOv2), each group is
    averaged, and each group weighs as much as the logit depends on it: ``dependence``, (...,
    batch, tokens), at the last attention. Where that has queries of its own, which are no tokens of
    the input (``of_tokens`` is false), those that are read weigh the same.
    """
    weights = torch.zeros_like(dependence)
    if layout.pooled is not None:
        weights[..., list(layout.pooled)] = 1 / len(layout.pooled)
        return weights
    is_input = layout.mark_input_tokens(dependence.device)
    if not of_tokens:
        is_input = is_input.new_ones(1, 1)
    total = dependence.sum(-1, keepdim=True)
    for group in (is_input, ~is_input):
        is_read = (dependence > 0) & group
        share = (dependence * group).sum(-1, keepdim=True) / total
        weights += torch.where(is_read, share / is_read.sum(-1, keepdim=True), 0)
    return weights
