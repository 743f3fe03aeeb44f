"""Localisation benchmark: how much of what speaks for a class lies on its object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.photos import (
    PreparedPhoto,
    View,
    prepare_photo,
    stack_masks,
)
from whence.benchmark.protocols.base import Metric, Row, locate_batch
from whence.benchmark.protocols.photos import PhotoProtocol
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.metrics.localization import enclose_objects, localize
from whence.metrics.segmentation import has_object
from whence.models import LoadedModel
from whence.models.forward import stack_on_device

if TYPE_CHECKING:
    from PIL import Image

    from whence.datasets import Sample
    from whence.explanation import Explanation


@dataclass
class LocalizationProtocol(PhotoProtocol):
    """The share of the positive scores that lies on the object, where the model is right.

    Attribution localisation is the share inside the mask (Kohlbrenner et al., IJCNN 2020; Arras et
    al., 2022); the energy-based pointing game is that inside the box (Wang et al., 2020), which is
    drawn around the mask where there are no boxes. A photo that the model classifies wrongly has no
    figure: what speaks for another class need not lie on the object. A photo without a label counts
    as it is predicted.

    Attributes:
        view: ``"model"``: the part of a photo that the model is made for. ``"whole"``: all of it,
            its proportions changed.
    """

    name: ClassVar[str] = "localization"
    main: ClassVar[str] = "localisation"
    main_column: ClassVar[str] = "in_mask"

    view: View = "model"

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        _require_object(first)

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedPhoto:
        _require_object(sample)
        return prepare_photo(loaded, sample, self.view)

    @override
    def judge_photos(
        self, loaded: LoadedModel, photos: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        labels = [self.labels.find_index(loaded, one.sample) for one in photos]
        pixels = stack_on_device([one.pixels for one in photos], loaded.device)
        explanation = locate_batch(loaded, pixels, method)
        maps = explanation.heatmap((pixels.shape[-2], pixels.shape[-1]))
        predicted: list[int] = explanation.target.tolist()
        rows: list[Row] = [
            {
                "sample": one.name,
                "label": label,
                "predicted": target,
                "correct": None if label is None else float(label == target),
            }
            for one, label, target in zip(photos, labels, predicted, strict=True)
        ]
        masks = stack_masks([one.mask for one in photos], maps)
        drawn = stack_masks([one.boxes for one in photos], maps)
        has_boxes = torch.tensor([one.boxes is not None for one in photos], device=maps.device)
        boxes = torch.where(has_boxes[:, None, None], drawn, enclose_objects(masks))
        _add_shares(rows, "in_mask", maps, masks)
        _add_shares(rows, "in_box", maps, boxes)
        return rows

    @override
    def list_metrics(self) -> list[Metric]:
        return [
            Metric("localisation", ("in_mask",), "higher", factor=100, ranked=True),
            Metric("energy in box", ("in_box",), "higher", factor=100, ranked=True),
            Metric("localisation, weighted", ("in_mask_weighted",), "higher", shown=False),
            Metric("energy in box, weighted", ("in_box_weighted",), "higher", shown=False),
        ]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        view = "as the model saw it" if self.view == "model" else "whole, proportions changed"
        first = next(iter(results.values()))
        total = len(first["sample"])
        correct = first.get("correct", np.full(total, np.nan)).astype(np.float64)
        right, unknown = int(np.nansum(correct)), int(np.isnan(correct).sum())
        notes = [
            f"The share of the positive scores of the predicted class, in percent, inside the mask "
            f"and inside the box (drawn around the mask where there are no boxes); each photo is "
            f"{view}. Weighted, in table.csv: divided by the share of the area."
        ]
        if unknown == total:
            notes.append(
                "The dataset has no labels, so that it is not known which photos are classified "
                "correctly: all of them count."
            )
        else:
            wrong = total - unknown - right
            left_out = f", and only these count; the other {wrong} have no figure" if wrong else ""
            notes.append(
                f"{right} of {total - unknown} labelled photos are classified correctly{left_out}."
            )
            if unknown:
                notes.append(f"{unknown} photo(s) without a label count as they are predicted.")
        boxes = first.get("in_box", np.full(total, np.nan)).astype(np.float64)
        empty = int((np.isnan(boxes) & ~(correct == 0)).sum())
        if empty:
            notes.append(f"{empty} photo(s) have no object in view, and no figure.")
        return notes

    @override
    def explain_example(
        self, loaded: LoadedModel, sample: Sample, method: MethodSpecification
    ) -> tuple[Image.Image | str, Explanation]:
        if self.view == "model":
            return super().explain_example(loaded, sample, method.to_locating())
        pixels = prepare_photo(loaded, sample, self.view).pixels[None].to(loaded.device)
        return sample.content, locate_batch(loaded, pixels, method)


def _add_shares(rows: Sequence[Row], column: str, maps: Tensor, masks: Tensor) -> None:
    """Add what lies inside the masks to rows that have an object and are not known to be wrong."""
    shares = localize(maps, masks)
    share, weighted = shares["share"].tolist(), shares["weighted"].tolist()
    for at in has_object(masks).nonzero()[:, 0].tolist():
        if rows[at]["correct"] != 0:
            rows[at].update({column: share[at], f"{column}_weighted": weighted[at]})


def _require_object(sample: Sample) -> None:
    if sample.mask is None and not sample.boxes:
        raise WhenceError(
            f"'{sample.name}' has neither a mask nor boxes, in which the localization benchmark "
            f"looks for scores; `whence benchmark gridpg` needs none."
        )
