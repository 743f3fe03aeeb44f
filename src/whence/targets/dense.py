"""Targets of models with many outputs for an image: a detected box, and places of a dense head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import SupportsIndex

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.targets.base import (
    LogitScalar,
    LogitsTarget,
    Place,
    Scalar,
    Target,
    TargetContext,
    pick_rows,
)
from whence.targets.classes import OneClass, find_class_index


def box(query: SupportsIndex | None = None, label: OneClass | None = None) -> Target:
    """The logit of a class for one query of a detection model.

    Args:
        query: The number of the query. None: the most confident one, of the label if one is given.
        label: The class by index or name. None: the highest of the query.
    """
    return BoxTarget(None if query is None else int(query), label)


def pixel(
    row: SupportsIndex | Tensor,
    column: SupportsIndex | None = None,
    label: OneClass | None = None,
) -> Target:
    """The logit of a class at one place of a dense head, such as that of a segmentation model.

    Args:
        row: The row in the head's own grid, which may be coarser than the image; or a mask of this
            grid, true or above 0 at the places over which logits are averaged.
        column: The column; left out with a mask.
        label: The class by index or name. None: the highest there.
    """
    if isinstance(row, Tensor) and row.dim() == 2:
        if column is not None:
            raise WhenceError("A mask of places needs no column.")
        return PixelTarget(row, label)
    if column is None:
        raise WhenceError("Give a row and a column, or a mask of places (rows, columns).")
    return PixelTarget((int(row), int(column)), label)


@dataclass(frozen=True)
class BoxTarget(LogitsTarget):
    """A class of one query."""

    query: int | None
    label: OneClass | None

    @override
    def resolve(self, place: Place, read: Tensor, context: TargetContext) -> list[Scalar]:
        if read.dim() != 3:
            raise WhenceError(
                f"A box is a target of detection models, which give logits of shape (batch, "
                f"queries, classes); this one gives {tuple(read.shape)}."
            )
        queries, labels = read.shape[1:]
        names = context.class_names
        # Models that choose one class of each query have one more, for "no object".
        has_none = labels == len(names) + 1
        confidence = read.float().softmax(2)[..., :-1] if has_none else read.float()
        count = confidence.shape[2]
        if self.query is not None and not 0 <= self.query < queries:
            raise WhenceError(
                f"Query {self.query} does not exist: the model has {queries}, 0 to {queries - 1}."
            )
        wanted = None if self.label is None else find_class_index(self.label, names, count)
        of_label = confidence.amax(2) if wanted is None else confidence[..., wanted]
        chosen = of_label.argmax(1).tolist() if self.query is None else [self.query] * len(read)
        samples = torch.arange(len(read), device=read.device)
        highest = pick_rows(confidence, samples, chosen).argmax(1).tolist()
        indices = highest if wanted is None else [wanted] * len(read)
        named = [
            f"{names.get(i, f'class {i}')} (box {q})" for q, i in zip(chosen, indices, strict=True)
        ]
        return [BoxScalar(place, chosen, indices, named, has_none)]


@dataclass
class BoxScalar(LogitScalar):
    """The logit of a class for a query."""

    place: Place
    queries: list[int]
    indices: list[int]
    names: list[str]
    one_of_all: bool

    @override
    def to_probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(1) if self.one_of_all else logits.sigmoid()

    @override
    def logits(self, read: Tensor, samples: Tensor) -> Tensor:
        return pick_rows(read, samples, self.queries)


@dataclass(frozen=True, eq=False)
class PixelTarget(LogitsTarget):
    """A class at a place of a dense head, or averaged over a mask of places."""

    where: tuple[int, int] | Tensor
    label: OneClass | None

    @override
    def resolve(self, place: Place, read: Tensor, context: TargetContext) -> list[Scalar]:
        if read.dim() not in (3, 4):
            raise WhenceError(
                f"A pixel is a target of models with a dense head, which give logits of shape "
                f"(batch, classes, rows, columns); this one gives {tuple(read.shape)}."
            )
        weights = self._weigh_places(read.shape[-2], read.shape[-1]).to(read.device)
        samples = torch.arange(len(read), device=read.device)
        scalar = PixelScalar(place, weights, [0] * len(read), [""] * len(read))
        logits, names = scalar.logits(read, samples), context.class_names
        if self.label is None:
            scalar.indices = logits.argmax(1).tolist()
        else:
            scalar.indices = [find_class_index(self.label, names, logits.shape[1])] * len(read)
        scalar.names = [f"{_name(names, i)} ({self._describe()})" for i in scalar.indices]
        return [scalar]

    def _describe(self) -> str:
        if isinstance(self.where, Tensor):
            return f"{int((self.where > 0).sum())} places"
        return f"row {self.where[0]}, column {self.where[1]}"

    def _weigh_places(self, rows: int, columns: int) -> Tensor:
        """Weights of the head's places, which sum to 1."""
        if isinstance(self.where, Tensor):
            if tuple(self.where.shape) != (rows, columns) or not bool((self.where > 0).any()):
                raise WhenceError(
                    f"The mask has shape {tuple(self.where.shape)}; the head's grid is ({rows}, "
                    f"{columns}), and the mask has at least one place of it."
                )
            weights = (self.where > 0).float()
            return weights / weights.sum()
        row, column = self.where
        if not (0 <= row < rows and 0 <= column < columns):
            raise WhenceError(
                f"Row {row}, column {column} does not exist: the head's grid has rows 0 to "
                f"{rows - 1} and columns 0 to {columns - 1}."
            )
        weights = torch.zeros(rows, columns)
        weights[row, column] = 1
        return weights


def _name(names: Mapping[int, str], index: int) -> str:
    return names.get(index, f"class {index}")


@dataclass
class PixelScalar(LogitScalar):
    """The mean logit of a class over places."""

    place: Place
    weights: Tensor
    indices: list[int]
    names: list[str]

    @override
    def logits(self, read: Tensor, samples: Tensor) -> Tensor:
        whole = read if read.dim() == 4 else read[:, None]
        return (whole * self.weights.to(whole.dtype)).sum((2, 3))
