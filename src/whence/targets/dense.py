"""Places of dense heads as targets: segmentation, depth, mattes, masks, super-resolution."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, TypeAlias, cast

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.torch_internals import without_torch_function
from whence.errors import WhenceError
from whence.targets.areas import TargetArea
from whence.targets.base import LogitScalar, Place, Scalar, Target, TargetContext, pick_columns
from whence.targets.classes import OneClass, find_class_index
from whence.targets.dense_outputs import (
    DenseOutput,
    Quantity,
    find_dense_output,
    weigh_queries,
)
from whence.targets.place_masks import fit_mask, has_mask_shape

Where: TypeAlias = "tuple[int | float, int | float] | Tensor | None"


def pixel(
    row: SupportsIndex | float | Tensor | None = None,
    column: SupportsIndex | float | None = None,
    label: OneClass | None = None,
) -> Target:
    """What a dense head tells of one place, or of several: the logit of a class, or the depth.

    Args:
        row: The row in the head's own grid, which may be coarser than the image; or, if it is a
            float, a share of the height, from 0 to below 1. Or a mask, (rows, columns) or one for
            each sample, of this grid or of the image that goes in; values are averaged over its
            places, true or above 0. None: the places that the model gives to the label.
        column: The column likewise; left out with a mask.
        label: The class by index or name. None: the highest there, or that of the most places. Of
            masks for a prompt, the number of the mask; None: the best, as the model thinks.
    """
    if has_mask_shape(row):
        if column is not None:
            raise WhenceError("A mask of places needs no column.")
        return PixelTarget(torch.as_tensor(row), label)
    if row is None and column is None:
        return PixelTarget(None, label)
    if row is None or column is None:
        raise WhenceError("Give a row and a column, or a mask of places (rows, columns).")
    return PixelTarget((_read_place(row, "row"), _read_place(column, "column")), label)


def _read_place(value: Any, what: str) -> int | float:
    if isinstance(value, float) and not isinstance(value, bool):
        if not 0 <= value < 1:
            raise WhenceError(
                f"{what} is a whole number, or as a float a share from 0 to below 1, not {value}."
            )
        return value
    try:
        return operator.index(value)
    except TypeError:
        message = f"{what} is a whole number, or a share from 0 to below 1, not {value!r}."
        raise WhenceError(message) from None


class DensePlace(Place):
    """What a dense head returned, at the places that targets need.

    Attributes:
        output: What it returned at all places, once it was read.
        window: Rows and columns that are read.
    """

    key = "places"

    def __init__(self, context: TargetContext, target: PixelTarget) -> None:
        self._context, self._targets = context, [target]
        self.output: DenseOutput | None = None
        self.window = slice(0, 0), slice(0, 0)

    @override
    def merge(self, other: Place) -> None:
        self._targets += cast(DensePlace, other)._targets

    @override
    def find(self, returned: Any) -> Tensor:
        return _join(find_dense_output(returned, self._context))

    @override
    def read(self, returned: Any) -> Tensor:
        found = find_dense_output(returned, self._context)
        if self.output is None:
            with without_torch_function():
                self.output = found.detach()
            self.window = self._find_window(*found.values.shape[2:])
        return _join(found.crop(*self.window))

    def _find_window(self, rows: int, columns: int) -> tuple[slice, slice]:
        """The rows and columns that hold all places of all targets."""
        places = [target.find_place(rows, columns) for target in self._targets]
        if any(place is None for place in places):
            return slice(0, rows), slice(0, columns)
        down, across = zip(*(place for place in places if place is not None), strict=True)
        return slice(min(down), max(down) + 1), slice(min(across), max(across) + 1)

    def split(self, read: Tensor) -> DenseOutput:
        """What was joined to be read, at the places of the window."""
        if self.output is None:
            raise RuntimeError("Nothing was read.")
        if self.output.classes is None:
            return DenseOutput(self.output.quantity, read)
        count = self.output.classes.shape[2]
        rows, columns = (part.stop - part.start for part in self.window)
        masks = read[..., count:].reshape(*read.shape[:2], rows, columns)
        return DenseOutput("queries", masks, read[..., :count])


def _join(output: DenseOutput) -> Tensor:
    if output.classes is None:
        return output.values
    return torch.cat([output.classes, output.values.flatten(2)], 2)


@dataclass(frozen=True, eq=False)
class PixelTarget(Target):
    """A class at a place of a dense head, or averaged over several.

    Attributes:
        where: Row and column, or a mask; None for the places that the model gives to the label.
        label: The class; None for the highest.
        rank: Without a place and a label, how many classes have more places.
        beside: Another target, whose places are taken.
    """

    where: Where
    label: OneClass | None
    rank: int = 0
    beside: PixelTarget | None = None

    @override
    def relabel(self, label: object) -> PixelTarget:
        return PixelTarget(self.where, cast(OneClass, label), beside=self)

    @override
    def make_place(self, context: TargetContext) -> Place:
        return DensePlace(context, self)

    @override
    def select_samples(self, rows: slice, batch: int) -> PixelTarget:
        if isinstance(self.where, Tensor) and self.where.dim() == 3:
            return replace(self, where=self.where[rows])
        return self

    def find_place(self, rows: int, columns: int) -> tuple[int, int] | None:
        """Row and column of one place in a grid of so many; None if there are several places.

        Raises:
            WhenceError: There is no such place.
        """
        if not isinstance(self.where, tuple):
            return None
        row, column = (
            math.floor(at * side) if isinstance(at, float) else at
            for at, side in zip(self.where, (rows, columns), strict=True)
        )
        if not (0 <= row < rows and 0 <= column < columns):
            raise WhenceError(
                f"Row {row}, column {column} does not exist: the head's grid has rows 0 to "
                f"{rows - 1} and columns 0 to {columns - 1}."
            )
        return row, column

    @override
    def resolve(self, place: Place, read: Tensor, context: TargetContext) -> list[Scalar]:
        place = cast(DensePlace, place)
        output = place.output
        assert output is not None
        batch, names = len(read), output.name_channels(context)
        rows, columns = output.values.shape[2:]
        named = self._find_label(output, names)
        labels = list[int]()
        if self.where is None:
            decides = self.beside or self
            label = decides._find_label(output, names)
            labels, weights = _find_regions(output, label, decides.rank, names)
            labels = labels if self.beside is None else []
        else:
            weights = self._weigh_places(rows, columns, context)
        weights = weights.to(output.values.device)
        cropped = weights[:, place.window[0], place.window[1]]
        scalar = PixelScalar(place, cropped, [0] * batch, [""] * batch, output.quantity)
        if not labels:
            labels = [named] * batch if named is not None else _find_highest(output, scalar, read)
        scalar.indices = labels
        scalar.names = [
            f"{names.get(i, f'class {i}')} ({_describe_places(weights[n])})"
            for n, i in enumerate(labels)
        ]
        scalar.areas = [TargetArea.from_mask(one >= one.max() / 2) for one in weights]
        return [scalar]

    def _find_label(self, output: DenseOutput, names: Mapping[int, str]) -> int | None:
        if self.label is None:
            return None
        if output.quantity in ("depth", "alpha"):
            raise WhenceError(
                f"This model tells the {output.quantity} of a place and no classes; leave the "
                f"label out."
            )
        return find_class_index(self.label, names, output.channel_count)

    def _weigh_places(self, rows: int, columns: int, context: TargetContext) -> Tensor:
        """Weights of the head's places, (batch, rows, columns), which sum to 1 for each sample."""
        if isinstance(self.where, Tensor):
            weights = fit_mask(self.where, rows, columns, context)
        else:
            weights = torch.zeros(1, rows, columns, dtype=torch.float64)
            found = self.find_place(rows, columns)
            assert found is not None
            weights[0, found[0], found[1]] = 1
        return (weights / weights.sum((1, 2), keepdim=True)).expand(context.batch, -1, -1)


def _describe_places(weights: Tensor) -> str:
    places = weights.nonzero().tolist()
    if len(places) > 1:
        return f"{len(places)} places"
    return f"row {places[0][0]}, column {places[0][1]}"


def _find_regions(
    output: DenseOutput, label: int | None, rank: int, names: Mapping[int, str]
) -> tuple[list[int], Tensor]:
    """For each sample a label, and weights of the places that the model gives to it."""
    values = output.score_places()
    batch, count = values.shape[:2]
    if output.quantity in ("depth", "alpha"):
        if rank:
            raise WhenceError(f"This model tells the {output.quantity} of places and no classes.")
        regions = torch.ones_like(values[:, 0])
        return [0] * batch, regions / regions[0].numel()
    if count == 1 or output.quantity == "mask":
        best = [0] * batch if output.quality is None else output.quality.argmax(1).tolist()
        labels = best if label is None else [label] * batch
        inside = torch.stack([values[n, of] > 0 for n, of in enumerate(labels)])
    else:
        decided = values.argmax(1)
        counts = torch.stack([(decided == of).sum((1, 2)) for of in range(count)], 1)
        if rank >= count:
            raise WhenceError(f"The model has {count} classes, and more were asked for.")
        ranked = counts.sort(stable=True, dim=1, descending=True).indices[:, rank].tolist()
        labels = ranked if label is None else [label] * batch
        inside = torch.stack([decided[n] == of for n, of in enumerate(labels)])
    for n, of in enumerate(labels):
        if not bool(inside[n].any()):
            raise WhenceError(
                f"The model gives no place of sample {n} to '{names.get(of, f'class {of}')}'. Name "
                f"a place: targets.pixel(row, column, label), or --pixel ROW,COLUMN."
            )
    weights = inside.double()
    return labels, weights / weights.sum((1, 2), keepdim=True)


def _find_highest(output: DenseOutput, scalar: PixelScalar, read: Tensor) -> list[int]:
    """For each sample the highest class at the places, or the best mask."""
    if output.quality is not None:
        return cast(list[int], output.quality.argmax(1).tolist())
    samples = torch.arange(len(read), device=read.device)
    return cast(list[int], scalar.logits(read, samples).argmax(1).tolist())


@dataclass
class PixelScalar(LogitScalar):
    """The mean over places of a class's logit, or of another quantity.

    Attributes:
        place: Where it is read.
        weights: (batch, rows, columns), of the places that are read.
        indices: For each sample, the class.
        names: For each sample, the name of class and places.
        quantity: What the head tells.
        areas: For each sample, where the places lie.
    """

    place: Place
    weights: Tensor
    indices: list[int]
    names: list[str]
    quantity: Quantity = "logits"
    areas: list[TargetArea | None] | None = None

    @override
    def logits(self, read: Tensor, samples: Tensor) -> Tensor:
        output = cast(DensePlace, self.place).split(read)
        values = output.score_places()
        return (values * self._select_weights(values, samples)[:, None]).sum((2, 3)).to(read.dtype)

    @override
    def propagated_values(self, read: Tensor, samples: Tensor) -> Tensor:
        output = cast(DensePlace, self.place).split(read)
        if output.classes is None:
            return self.values(read, samples)
        # The gradient of a score vanishes where a probability is nearly 1, that of logits does not.
        labels = torch.as_tensor(self.indices, device=read.device)[samples]
        shares, logits = weigh_queries(output.classes, output.values, labels)
        weights = self._select_weights(logits, samples)[:, None]
        return (shares * logits * weights).sum((1, 2, 3))

    @override
    def probabilities(self, read: Tensor, samples: Tensor) -> Tensor | None:
        if self.quantity == "mask":
            chances = self.logits(read, samples).float().sigmoid()
            return pick_columns(chances, samples, self.indices)
        of_classes = self.quantity in ("logits", "queries")
        return super().probabilities(read, samples) if of_classes else None

    def _select_weights(self, values: Tensor, samples: Tensor) -> Tensor:
        return self.weights.to(values.device, values.dtype)[samples.to(values.device)]
