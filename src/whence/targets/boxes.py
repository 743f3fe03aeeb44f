"""Boxes of detection models, and masks of segmentation models that find objects by queries."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.torch_internals import without_torch_function
from whence.errors import WhenceError
from whence.targets.areas import TargetArea
from whence.targets.base import (
    LogitScalar,
    Place,
    Scalar,
    Target,
    TargetContext,
    pick_rows,
    require_for_each,
)
from whence.targets.classes import OneClass, find_class_index
from whence.targets.object_names import name_objects
from whence.targets.query_outputs import QueryOutput, find_query_output


def box(
    query: SupportsIndex | Sequence[SupportsIndex] | None = None, label: OneClass | None = None
) -> Target:
    """The logit of a class for one query of a detection model.

    A segmentation model with a mask for each query (MaskFormer, Mask2Former, OneFormer, EoMT) has
    such logits, too: then the target is the class of a mask.

    Args:
        query: The number of the query, or one for each sample. None: the most confident one, of
            the label if one is given.
        label: The class by index or name; of a model that is told by texts what to find, the
            number of a text. None: the highest of the query.
    """
    try:
        if query is None or isinstance(query, SupportsIndex):
            return BoxTarget(None if query is None else operator.index(query), label)
        return BoxTarget(tuple(map(operator.index, query)), label)
    except TypeError:
        message = f"query is a whole number, or one for each sample, not {query!r}."
        raise WhenceError(message) from None


class BoxPlace(Place):
    """The logits that a model gives for the classes of its queries.

    Attributes:
        output: What the model returned of the queries, once it was read.
    """

    key = "boxes"

    def __init__(self, context: TargetContext) -> None:
        self._context = context
        self.output = QueryOutput()

    @override
    def find(self, returned: Any) -> Tensor:
        return find_query_output(returned, self._context).get_logits()

    @override
    def read(self, returned: Any) -> Tensor:
        found = find_query_output(returned, self._context)
        if self.output.logits is None:
            with without_torch_function():
                self.output = found.detach()
        return found.get_logits()


@dataclass(frozen=True)
class BoxTarget(Target):
    """A class of one query.

    Attributes:
        query: The query, or one for each sample; None for the most confident.
        label: The class; None for the highest of the query.
        rank: Without a query, how many are more confident.
        beside: Another target, whose query is taken.
    """

    query: int | tuple[int, ...] | None
    label: OneClass | None
    rank: int = 0
    beside: BoxTarget | None = None

    @override
    def make_place(self, context: TargetContext) -> Place:
        return BoxPlace(context)

    @override
    def relabel(self, label: object) -> BoxTarget:
        return BoxTarget(self.query, cast(OneClass, label), beside=self)

    @override
    def select_samples(self, rows: slice, batch: int) -> BoxTarget:
        if not isinstance(self.query, tuple):
            return self
        require_for_each(self.query, batch, "queries")
        return replace(self, query=self.query[rows])

    @override
    def resolve(self, place: Place, read: Tensor, context: TargetContext) -> list[Scalar]:
        output, batch = cast(BoxPlace, place).output, len(read)
        if read.dim() != 3:
            raise WhenceError(
                f"A box is a target of detection models, which give logits of shape (batch, "
                f"queries, classes); this one gives {tuple(read.shape)}."
            )
        names = name_objects(output, context, batch, read.shape[2])
        has_none = output.has_none(context, read.shape[2])
        confidence = read.float().softmax(2)[..., :-1] if has_none else read.float()
        count = confidence.shape[2]
        wanted = [self._find_label(names[n], count) for n in range(batch)]
        decides = self.beside if self.beside is not None and self.query is None else self
        chosen = decides._choose_queries(confidence, names)
        samples = torch.arange(batch, device=read.device)
        highest = pick_rows(confidence, samples, chosen).argmax(1).tolist()
        indices = [h if of is None else of for h, of in zip(highest, wanted, strict=True)]
        named = [
            f"{of.get(i, f'class {i}')} ({output.noun} {q})"
            for of, q, i in zip(names, chosen, indices, strict=True)
        ]
        areas = [output.find_area(n, q, context) for n, q in enumerate(chosen)]
        return [BoxScalar(place, chosen, indices, named, has_none, areas)]

    def _find_label(self, names: Mapping[int, str], count: int) -> int | None:
        return None if self.label is None else find_class_index(self.label, names, count)

    def _choose_queries(self, confidence: Tensor, names: Sequence[Mapping[int, str]]) -> list[int]:
        """The query of each sample, given confidences, (batch, queries, classes), and names."""
        batch, queries, count = confidence.shape
        if self.query is None:
            if self.rank >= queries:
                raise WhenceError(f"The model has {queries} queries, and more were asked for.")
            wanted = [self._find_label(names[n], count) for n in range(batch)]
            pairs = zip(confidence, wanted, strict=True)
            best = [row.amax(1) if of is None else row[:, of] for row, of in pairs]
            ranked = torch.stack(best).topk(self.rank + 1).indices
            return cast(list[int], ranked[:, -1].tolist())
        chosen = self.query if isinstance(self.query, tuple) else (self.query,) * batch
        require_for_each(chosen, batch, "queries")
        for query in chosen:
            if not 0 <= query < queries:
                raise WhenceError(
                    f"Query {query} does not exist: the model has {queries}, 0 to {queries - 1}."
                )
        return list(chosen)


@dataclass
class BoxScalar(LogitScalar):
    """The logit of a class for a query."""

    place: Place
    queries: list[int]
    indices: list[int]
    names: list[str]
    one_of_all: bool
    areas: list[TargetArea | None] | None = field(default=None)

    @override
    def to_probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(1) if self.one_of_all else logits.sigmoid()

    @override
    def probabilities(self, read: Tensor, samples: Tensor) -> Tensor | None:
        if self.one_of_all:
            return super().probabilities(read, samples)
        values = self.values(read, samples)
        return values.to(torch.promote_types(values.dtype, torch.float32)).sigmoid()

    @override
    def logits(self, read: Tensor, samples: Tensor) -> Tensor:
        return pick_rows(read, samples, self.queries)
