"""Perturbation benchmark: how the decision changes as pixels are deleted in the order of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.photos import PreparedPhoto, compute_by_shape, prepare_photo
from whence.benchmark.protocols.base import (
    BenchmarkProtocol,
    Better,
    Curve,
    Metric,
    Row,
    add_columns,
    explain_batch,
)
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.faithfulness.photos import PhotoRunner
from whence.methods import MethodSpecification
from whence.metrics.curves import area_under_curve, compute_curves
from whence.metrics.deletion import FRACTIONS, Order, count_units, delete_in_order, rank_units
from whence.metrics.pixels import Fill
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, stack_on_device
from whence.models.image_preprocessing import PixelScale

if TYPE_CHECKING:
    from whence.datasets import Sample

_ORDERS: dict[str, Order] = {"positive": "highest", "negative": "lowest"}
_BETTER: dict[str, Better] = {"positive": "lower", "negative": "higher"}
_STEPS = (0.0, *FRACTIONS)
_CLASSES = ("predicted", "target")


@dataclass
class PerturbationProtocol(BenchmarkProtocol[PreparedPhoto]):
    """Pixels are blackened, the most important first (positive) or last (negative).

    After Chefer, Gur, Wolf (CVPR 2021): the map is upsampled to pixels; the top 10, 20, … 90 % of
    them are set to 0 before normalisation; top-1 accuracy against the true label is measured at
    each step, and the figure is the area under that curve, by trapezoids, times 100. The class
    that is explained is the predicted one, and the true one (the target).

    Attributes:
        unit: What is deleted: pixels of the upsampled map, or whole patches.
        fill: What is put there: black, the photo's mean colour, or a blurred copy.
        insertion: Whether to measure deletion and insertion too (Petsiuk 2018): areas under the
            probability of the explained class, from nothing to everything deleted, or inserted.
    """

    name: ClassVar[str] = "perturbation"
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    main: ClassVar[str] = "positive, predicted"
    main_column: ClassVar[str] = "positive_predicted_probability_auc"
    judges_stored: ClassVar[bool] = True

    unit: Literal["pixels", "patches"] = "pixels"
    fill: Fill = "zero"
    insertion: bool = False

    @override
    def describe_wrong_kind(self, kind: str) -> str:
        return (
            f"The perturbation benchmark deletes pixels of photos; deleting words of a {kind} is "
            f"measured by `whence report`, and where people marked words by `whence benchmark "
            f"rationale` (comprehensiveness and sufficiency)."
        )

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedPhoto:
        PixelScale.from_model(loaded)
        return prepare_photo(loaded, sample)

    @override
    def compute_rows(
        self, loaded: LoadedModel, samples: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        return compute_by_shape(samples, lambda photos: self._compute_rows(loaded, photos, method))

    def _compute_rows(
        self, loaded: LoadedModel, photos: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        labels = [self.labels.find_index(loaded, one.sample) for one in photos]
        pixels = stack_on_device([one.pixels for one in photos], loaded.device)
        names = [one.name for one in photos]
        predicted = explain_batch(loaded, pixels, method, names=names)
        classes: list[int] = predicted.target.tolist()
        maps, inputs = [self._unit_scores(predicted)], list(range(len(photos)))
        # The map of the target class: another map only where that is another class.
        of_target = list(inputs)
        targets = {
            n: label for n, label in enumerate(labels) if label is not None and label != classes[n]
        }
        if targets and predicted.class_specific:
            # Each batch has another number of them, for which compiling does not pay.
            eager, others = loaded.to_eager(), list(targets)
            of_others = explain_batch(eager, pixels[others], method, list(targets.values()))
            maps.append(self._unit_scores(of_others))
            for number, at in enumerate(others):
                of_target[at] = len(photos) + number
            inputs += others
        logits = self._delete(loaded, pixels, torch.cat(maps), inputs, predicted)
        # Accuracy is against the label, or against the prediction where there is none.
        references = [classes[n] if label is None else label for n, label in enumerate(labels)]
        rows: list[Row] = [
            {
                "sample": one.name,
                "label": labels[n],
                "predicted": classes[n],
                "clean": float(int(predicted.logits[n].argmax()) == references[n]),
            }
            for n, one in enumerate(photos)
        ]
        watched: list[tuple[Sequence[int | None], list[int]]]
        watched = [(classes, inputs[: len(photos)]), (labels, of_target)]
        for which, (indices, of_map) in zip(_CLASSES, watched, strict=True):
            known = {n: index for n, index in enumerate(indices) if index is not None}
            self._add_figures(
                [rows[n] for n in known],
                which,
                logits[:, [of_map[n] for n in known]],
                torch.tensor(list(known.values()), dtype=torch.long),
                torch.tensor([references[n] for n in known], dtype=torch.long),
            )
        return rows

    def _unit_scores(self, explanation: Explanation) -> Tensor:
        """(batch, units), of pixels or patches."""
        if self.unit == "patches":
            return explanation.scores
        return torch.flatten(explanation.heatmap(), 1)

    def _delete(
        self,
        loaded: LoadedModel,
        pixels: Tensor,
        maps: Tensor,
        inputs: Sequence[int],
        predicted: Explanation,
    ) -> Tensor:
        """Logits of the clean photo and of each step, (orders, maps, steps, classes)."""
        if self.unit == "patches" and predicted.picture_grid is None:
            raise WhenceError("The model has no grid of patches; use --unit pixels.")
        of_photo = torch.tensor(inputs, device=pixels.device)
        grid = predicted.picture_grid if self.unit == "patches" else None
        logits = delete_in_order(
            torch.cat([rank_units(maps, order) for order in _ORDERS.values()]),
            count_units(maps.shape[1], self._steps[1:]),
            PhotoRunner(loaded, pixels, grid, self.fill),
            of_photo.repeat(len(_ORDERS)),
            chunk_size=choose_chunk_size(loaded),
        ).reshape(len(_ORDERS), len(maps), len(self._steps) - 1, -1)
        clean = predicted.logits.to(logits)[of_photo][None, :, None]
        return torch.cat([clean.expand(len(_ORDERS), -1, -1, -1), logits], 2)

    @property
    def _steps(self) -> tuple[float, ...]:
        """Fractions of the units that are deleted; insertion starts where all are."""
        return (*_STEPS, 1.0) if self.insertion else _STEPS

    def _add_figures(
        self, rows: Sequence[Row], which: str, logits: Tensor, classes: Tensor, references: Tensor
    ) -> None:
        """Add curves and areas of a class to the rows of its photos."""
        areas = {}
        for order, of_order in zip(_ORDERS, logits, strict=True):
            curves = compute_curves(of_order, classes, references)
            steps = len(_STEPS)
            start = f"{order}_{which}"
            accuracy, probability = curves["accuracy"][:, :steps], curves["probability"]
            areas[order] = area_under_curve(accuracy, _STEPS)
            columns = {
                f"{start}_accuracy": accuracy,
                f"{start}_probability": probability[:, :steps],
                f"{start}_logit": curves["logit"][:, :steps],
                f"{start}_auc": areas[order],
                f"{start}_probability_auc": area_under_curve(probability[:, :steps], _STEPS),
            }
            if self.insertion:
                # Deleting the lowest 90 % is inserting the highest 10 %, so the negative curve
                # read backwards is that of insertion.
                kind = "deletion" if order == "positive" else "insertion"
                curve = probability if order == "positive" else probability.flip(1)
                columns[f"{kind}_{which}"] = area_under_curve(curve, self._steps)
            add_columns(rows, columns)
        add_columns(rows, {f"difference_{which}_auc": areas["negative"] - areas["positive"]})

    @override
    def list_metrics(self) -> list[Metric]:
        orders = _BETTER.items()
        groups: list[list[tuple[str, str, Better]]] = [
            [(f"{order}, {{}}", f"{order}_{{}}_auc", better) for order, better in orders],
            [("difference, {}", "difference_{}_auc", "higher")],
            [("deletion, {}", "deletion_{}", "lower"), ("insertion, {}", "insertion_{}", "higher")],
        ]
        hidden = [
            (f"{order}, {{}}, probability", f"{order}_{{}}_probability_auc", better)
            for order, better in orders
        ]
        return [
            Metric(
                name.format(which),
                (column.format(which),),
                better,
                shown=group is not hidden,
                ranked=name.startswith("difference"),
            )
            for group in (*groups, hidden)
            for which in _CLASSES
            for name, column, better in group
        ]

    @override
    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:
        x_title = f"share of {self.unit} deleted"
        curves = []
        for figure in ("accuracy", "probability", "logit"):
            for which in _CLASSES:
                for order in _ORDERS:
                    title, column = f"{order}, {which} class: {figure}", f"{order}_{which}_{figure}"
                    curves.append(Curve(title, column, _STEPS, x_title, figure != "logit"))
        return curves

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        first = next(iter(results.values()))
        labels = first.get("label", np.array([]))
        clean = float(np.nanmean(first["clean"])) if len(first.get("clean", ())) else float("nan")
        unlabelled = int(np.isnan(labels).sum()) if labels.dtype != object else len(labels)
        notes = [f"Clean accuracy: {100 * clean:.2f} %."]
        if unlabelled == len(labels):
            notes = [
                "The dataset has no labels: accuracy is against the class that the model predicts "
                "for the clean photo, and the target class is left out."
            ]
        elif unlabelled:
            notes.append(f"{unlabelled} photo(s) without a label count against the prediction.")
        filling = {"zero": "black", "mean": "the photo's mean colour", "blur": "a blurred copy"}
        notes.append(
            f"Areas under the top-1 accuracy when 0, 10, … 90 % of the {self.unit} become "
            f"{filling[self.fill]}, times 100; positive deletes the highest first, negative the "
            f"lowest; the difference is negative less positive."
        )
        return notes
